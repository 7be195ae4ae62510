"""Which streams decode in which batch where several batches are in flight: a pipeline of stages, one batch in each.

A sequence is in one batch at most, because its next token needs the one before. So streams are dealt out to as many
batches as the pipeline holds, or its stages would wait for each other: a batch with more rows than the next leaves a
gap behind it at every stage (a D-D bubble; Hwang and Ahn, "Revisiting Pipeline Parallelism for LLM Serving", OSDI'26).
"""

from __future__ import annotations

from scheduling.preemption import make_room_for_decodes, make_room_for_rows, spare_s
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence


def rows_of_next(state: ReplicaState, now: float) -> list[Sequence]:
    """The streams that decode in the next batch, each with a block for its token; their clocks run from now on.

    Everything that decodes where one batch is in flight at a time. Else those that are in no batch: an even share, the
    most urgent first.
    """
    if state.config.pipeline_depth == 1:
        make_room_for_decodes(state, now)
        rows = list(state.decoding.values())
    else:
        rows = make_room_for_rows(state, _share(state, now), now)
        while not rows and state.decoding and state.in_flight is None:  # those of this share gave way to the others
            rows = make_room_for_rows(state, _share(state, now), now)
    for sequence in rows:
        if sequence.first_decode_at is None:
            sequence.start_clock(now)
    return rows


def _share(state: ReplicaState, now: float) -> list[Sequence]:
    """At most the mean over all batches; with several batches to form at once no more than leaves some for each.

    Where the mean is no whole number as many batches as need to be get one row more.
    """
    free = [s for s in state.decoding.values() if s.request_id not in state.flying]
    if len(free) <= 1:
        return free
    depth = state.config.pipeline_depth
    mean, larger = divmod(len(state.decoding), depth)
    steps = () if state.in_flight is None else (state.in_flight, *state.behind)
    mean += sum(step.shape.decodes > mean for step in steps) < larger
    even = -(-len(free) // (depth - state.num_in_flight))
    free.sort(key=lambda s: (spare_s(s, now), s.request_id))
    return free[: max(1, min(mean, even))]

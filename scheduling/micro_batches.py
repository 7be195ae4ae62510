"""Which streams decode in which batch where several batches are in flight: a pipeline of stages, one batch in each.

A sequence is in one batch at most, because its next token needs the one before. So streams are dealt out to as many
batches as the pipeline holds, or its stages would wait for each other: a batch with more rows than the next leaves a
gap behind it at every stage (a D-D bubble; Hwang and Ahn, "Revisiting Pipeline Parallelism for LLM Serving", OSDI'26).

`micro_batches`  a batch that is formed takes
`even`           no more than the mean; what is over goes with the next one, most urgent first
`kept`           all that are free: who was in a batch is in the one that follows it, as in usual servers
`delayed`        the paper's delay scheduling, where nothing is there to be prefilled: linear layers compute whole
                 tiles, so few rows over a boundary cost as much as a tile of them. Up to `EXCESS` rows over one of
                 `BOUNDARIES` are held back, else the batch is aligned to the mean. Held back are the latest to arrive
                 (the others end sooner and free their KV), or the oldest if streams have little slack. Nobody is held
                 back twice in turn: that is ours, as is `EXCESS`, for which the paper gives no value.
"""

from __future__ import annotations

from scheduling.preemption import make_room_for_decodes, make_room_for_rows, spare_s
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence

BOUNDARIES = (128, 256, 384)
EXCESS = 32


def rows_of_next(state: ReplicaState, now: float, *, alone: bool) -> list[Sequence]:
    """The streams that decode in the next batch, each with a block for its token; their clocks run from now on.

    Everything that decodes where one batch is in flight at a time, else some of those that are in no batch. `alone`:
    nothing can be prefilled beside them.
    """
    if state.config.pipeline_depth == 1:
        make_room_for_decodes(state, now)
        rows = list(state.decoding.values())
    else:
        rows = make_room_for_rows(state, _share(state, now, alone=alone), now)
        while not rows and state.decoding and state.in_flight is None:  # those of this share gave way to the others
            rows = make_room_for_rows(state, _share(state, now, alone=alone), now)
    for sequence in rows:
        if sequence.first_decode_at is None:
            sequence.start_clock(now)
    return rows


def _share(state: ReplicaState, now: float, *, alone: bool) -> list[Sequence]:
    """With several batches to form at once no more than leaves some for each."""
    free = [s for s in state.decoding.values() if s.request_id not in state.flying]
    if len(free) <= 1:
        return free
    kind = state.config.micro_batches
    most = -(-len(free) // (state.config.pipeline_depth - state.num_in_flight))
    if kind == "delayed":
        return _delayed(state, free, most, now) if alone else free[:most]
    free.sort(key=lambda s: (spare_s(s, now), s.request_id))
    return free[:most] if kind == "kept" else free[: max(1, min(most, _mean(state)))]


def _mean(state: ReplicaState) -> int:
    """Rows of a batch if all had as many; where that is no whole number as many batches as need be get one more."""
    mean, larger = divmod(len(state.decoding), state.config.pipeline_depth)
    steps = () if state.in_flight is None else (state.in_flight, *state.behind)
    return mean + (sum(step.shape.decodes > mean for step in steps) < larger)


def _delayed(state: ReplicaState, free: list[Sequence], most: int, now: float) -> list[Sequence]:
    keep = min(most, len(free))
    boundary = max((rows for rows in BOUNDARIES if rows <= keep), default=0)
    keep = boundary if boundary and keep - boundary <= EXCESS else max(1, min(keep, _mean(state)))
    patient = [s for s in free if s.request_id not in state.held]
    hold = min(len(free) - keep, len(patient))
    in_need = sum(spare_s(s, now) for s in free) < sum(s.tpot_s for s in free)
    patient.sort(key=lambda s: (s.arrived_at, s.request_id), reverse=not in_need)
    held = {s.request_id for s in patient[:hold]}
    state.held = held
    return [s for s in free if s.request_id not in held]

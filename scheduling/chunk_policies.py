"""How many tokens a mixed step holds, following the load: the two policies of DCP, and ours on pipelines.

Source: Hwang and Ahn, "Revisiting Pipeline Parallelism for LLM Serving", OSDI'26, dynamic chunked prefill. Small chunks
keep the batches of a pipeline alike, so that its stages do not wait for each other, and tokens come fast; large ones
get through a burst of prompts. Of a pipeline `depth` batches are in flight, so a token takes about `depth` times what a
batch takes in one stage. Thresholds that the paper leaves open are in `scheduling.chunk_config`.

The `deadline` budget alone would fill every step up to the next deadline of a stream: on one device nobody loses by
that, on a pipeline the other stages wait. There it takes of DCP's sizes the smallest that the prompts' own deadlines
and the arrivals ask for (`even_tokens`). Whole sizes also where deadlines of streams allow less: a matrix product takes
as long for 129 rows as for 256 (DCP, §2), so that steps cut to the millisecond would waste much of each stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from scheduling.admission import uncached
from scheduling.admission_rules import Budget
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_state import ReplicaState
from scheduling.step_shape import StepShape

DONE_BY = 0.7
"""Of the time that a prompt has left, `even_tokens` counts on so much: what comes meanwhile takes its part too."""


def keeps_even(config: ReplicaCoreConfig) -> bool:
    """Whether `even_tokens` bounds the steps of mixed replicas."""
    return config.rule.budget is Budget.DEADLINE and config.pipeline_depth > 1


def counts_arrivals(config: ReplicaCoreConfig) -> bool:
    """Whether steps depend on how fast prompts come."""
    return config.rule.follows_load or keeps_even(config)


def step_tokens(state: ReplicaState, decodes: StepShape, now: float) -> int:
    """The tokens of the next mixed step under `dcp_greedy` or `dcp_predictive`, its decode rows included."""
    if state.config.rule.budget is Budget.GREEDY:
        return _greedy(state, decodes, now)
    return _predictive(state, decodes, now)


def smallest_feasible(
    sizes: Iterable[int], time_s: Callable[[int], float], *, rows: int, tokens_per_s: float, limit_s: float
) -> int | None:
    """The smallest step (in tokens, `sizes` in order) that takes `limit_s` at most and, its `rows` decode rows apart,
    computes `tokens_per_s` of prompts if such steps follow each other; none so: the largest that takes `limit_s`.

    None if each takes longer. `time_s` tells what a step of so many tokens takes in a stage.
    """
    largest = None
    for size in sizes:
        takes_s = time_s(size)
        if takes_s > limit_s:
            continue
        largest = size
        if size - rows >= tokens_per_s * takes_s:
            return size
    return largest


def even_tokens(state: ReplicaState, decodes: StepShape, allowed_s: float, now: float) -> int:
    """The tokens of the next mixed step of a pipeline under `deadline`, its decode rows included: the smallest size by
    which prompts are done as fast as they arrive and each by its TTFT target, else the largest that takes a stage
    `allowed_s` at most; where none does, whatever `allowed_s` permits."""
    config, rows = state.config.chunks, decodes.tokens
    return (
        smallest_feasible(
            [size for size in config.sizes if size > rows],
            _stage_time(state, decodes),
            rows=rows,
            tokens_per_s=max(state.load.arriving_per_s(now, config.window_s), _due_rate(state, now)),
            limit_s=allowed_s,
        )
        or rows + state.config.max_chunk
    )


def _due_rate(state: ReplicaState, now: float) -> float:
    """Prompt tokens per second by which every prompt is done in time, those whose target has passed apart.

    Served in the order of their targets, each has to wait for those before it. And since one prompt is in one batch at
    a time, it gets a chunk each `depth` batches only, however few others there are.
    """
    depth = state.config.pipeline_depth
    needed, before = 0.0, 0
    for sequence in sorted((*state.prefilling.values(), *state.waiting.values()), key=lambda s: s.ttft_deadline):
        left_s, own = DONE_BY * (sequence.ttft_deadline - now), uncached(sequence)
        before += own
        if left_s > 0.0:
            needed = max(needed, before / left_s, depth * own / left_s)
    return needed


def _greedy(state: ReplicaState, decodes: StepShape, now: float) -> int:
    """Decided anew each time as many steps have landed as the pipeline holds; it moves by one size at a time."""
    load, config = state.load, state.config.chunks
    sizes = config.sizes
    load.size = min(max(load.size, sizes[0]), sizes[-1])
    if load.landed_since < state.config.pipeline_depth and load.decided:
        return load.size
    load.landed_since, load.decided = 0, True
    if state.ledger.num_free < config.free_share * state.ledger.num_blocks:
        load.size = next((size for size in sizes if size > decodes.tokens), sizes[-1])
        return load.size
    tpot_s, ttft_s = _targets(state)
    tpot_left_s = tpot_s - load.round_trip_s
    ttft_left_s = ttft_s - _mean_age_s(state, now)
    if tpot_left_s < 0.0 or ttft_left_s > config.calm * ttft_s:
        load.size = max(sizes[0], load.size - config.grain)
    elif ttft_left_s < config.pressed * ttft_s and tpot_left_s > config.spare * tpot_s:
        load.size = min(sizes[-1], load.size + config.grain)
    return load.size


def _predictive(state: ReplicaState, decodes: StepShape, now: float) -> int:
    """The smallest size that keeps up with the load within the TPOT target, by the predictor's times."""
    sizes, rows = state.config.chunks.sizes, decodes.tokens
    tpot_s, ttft_s = _targets(state)
    chosen = smallest_feasible(
        [size for size in sizes if size > rows],
        _stage_time(state, decodes),
        rows=rows,
        tokens_per_s=_needed_rate(state, ttft_s, now),
        limit_s=tpot_s / state.config.pipeline_depth,
    )
    return next((size for size in sizes if size > rows), sizes[-1]) if chosen is None else chosen


def _stage_time(state: ReplicaState, decodes: StepShape) -> Callable[[int], float]:
    """What a step of so many tokens takes in a stage, the rest of it a chunk of the prompt that is furthest on."""
    rows, cost = decodes.tokens, state.predictor.cost
    past = max((s.num_computed for s in state.prefilling.values()), default=0)

    def time_s(size: int) -> float:
        shape = replace(decodes)
        if size > rows:
            shape.add_prefill(past, size - rows)
        return shape.predict_s(cost)

    return time_s


def _needed_rate(state: ReplicaState, ttft_s: float, now: float) -> float:
    """Prompt tokens per second: as many as arrive, and the stale ones before their target passes."""
    config = state.config.chunks
    rate = state.load.arriving_per_s(now, config.window_s)
    prompts = (*state.prefilling.values(), *state.waiting.values())
    stale = [s for s in prompts if s.age_s(now) > config.stale_after * ttft_s]
    if not stale:
        return rate
    left_s = ttft_s - _mean_age_s(state, now)
    return rate + sum(uncached(s) for s in stale) / left_s if left_s > 0.0 else math.inf


def _targets(state: ReplicaState) -> tuple[float, float]:
    """The tightest TPOT and TTFT targets of what is here; infinite without any."""
    here = (*state.decoding.values(), *state.prefilling.values(), *state.waiting.values())
    return min((s.tpot_s for s in here), default=math.inf), min((s.request.slo.ttft_s for s in here), default=math.inf)


def _mean_age_s(state: ReplicaState, now: float) -> float:
    prompts = (*state.prefilling.values(), *state.waiting.values())
    return sum(s.age_s(now) for s in prompts) / len(prompts) if prompts else 0.0

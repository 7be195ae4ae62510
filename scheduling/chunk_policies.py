"""How many tokens a mixed step holds, following the load: the two policies of DCP.

Source: Hwang and Ahn, "Revisiting Pipeline Parallelism for LLM Serving", OSDI'26, dynamic chunked prefill. Small chunks
keep the batches of a pipeline alike, so that its stages do not wait for each other, and tokens come fast; large ones
get through a burst of prompts. Of a pipeline `depth` batches are in flight, so a token takes about `depth` times what a
batch takes in one stage. Thresholds that the paper leaves open are in `scheduling.chunk_config`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from scheduling.admission import uncached
from scheduling.admission_rules import Budget
from scheduling.replica_state import ReplicaState
from scheduling.step_shape import StepShape


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
    cost, past = state.predictor.cost, max((s.num_computed for s in state.prefilling.values()), default=0)

    def time_s(size: int) -> float:
        shape = replace(decodes)
        if size > rows:
            shape.add_prefill(past, size - rows)
        return shape.predict_s(cost)

    tpot_s, ttft_s = _targets(state)
    chosen = smallest_feasible(
        [size for size in sizes if size > rows],
        time_s,
        rows=rows,
        tokens_per_s=_needed_rate(state, ttft_s, now),
        limit_s=tpot_s / state.config.pipeline_depth,
    )
    return next((size for size in sizes if size > rows), sizes[-1]) if chosen is None else chosen


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

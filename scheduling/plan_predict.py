"""What a placement would cost in time and KV blocks, predicted from a replica's own step-cost coefficients."""

from __future__ import annotations

import math
from functools import lru_cache

from contracts.views import StepCost
from scheduling.plan_inputs import Ask, Load
from scheduling.step_cost import predict_prefill_s, predict_step_s
from scheduling.step_shape import prefill_sums

MIN_CHUNKED_SHARE = 0.05
"""Share of a mixed replica's time that prefill gets even when the token budget leaves no room (overdue prompts)."""


@lru_cache(maxsize=4096)
def _prefill_sums(past: int, tokens: int, chunk: int) -> tuple[int, int, int]:
    """Steps, past x chunk and chunk squared of a prompt. Remembered: a decision asks it of many replicas, and what
    differs between them is the cost alone."""
    return prefill_sums(past, tokens, chunk)


def prompt_prefill_s(cost: StepCost, prompt_tokens: int, prefill_chunk: int, cached_tokens: int = 0) -> float:
    """Seconds to prefill one prompt alone, its first `cached_tokens` in the prefix cache, without margin: a decision
    adds that once, however many prompts it is about."""
    tokens = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
    steps, past_chunk, chunk_sq = _prefill_sums(cached_tokens, tokens, prefill_chunk)
    return cost.a0 * steps + cost.a1 * tokens + cost.b0 * past_chunk + cost.b1 * chunk_sq


def prefill_on_s(ask: Ask, load: Load, prefill_chunk: int) -> float:
    """Seconds to prefill the prompt of `ask` alone on a replica, after what its cache is known to hold."""
    return prompt_prefill_s(load.cost, ask.prompt_tokens, prefill_chunk, ask.cached_on(load.replica_id))


def sharing_saves_s(cost: StepCost, tokens: int, prefill_chunk: int) -> float:
    """What `tokens` of a prompt spare when they share their steps with others: of the fixed part of a step they pay on
    average the share that they fill."""
    return cost.a0 * (-(-tokens // prefill_chunk) - tokens / prefill_chunk)


def joining_prefill_s(ask: Ask, load: Load, prefill_chunk: int) -> float:
    """Seconds by which the prompt of `ask` prolongs what a replica has to prefill: `prefill_on_s`, or less where other
    prompts wait, with which it shares steps, or beside decodes, whose steps it rides in."""
    cached = ask.cached.get(load.replica_id, 0) if ask.cached else 0
    alone_s = prompt_prefill_s(load.cost, ask.prompt_tokens, prefill_chunk, cached)
    left = ask.prompt_tokens - cached
    if load.rides:
        return alone_s - load.cost.a0 * -(-left // prefill_chunk)
    return alone_s - sharing_saves_s(load.cost, left, prefill_chunk) if load.joins else alone_s


def request_prefill_s(
    cost: StepCost, prompt_tokens: int, num_sequences: int, block_size: int, prefill_chunk: int, cached_tokens: int = 0
) -> float:
    """Seconds to prefill all sequences of a request: what is not cached of the prompt once, then for each further
    sequence what is not a full block (full blocks are shared, and the last token is always computed)."""
    first_s = prompt_prefill_s(cost, prompt_tokens, prefill_chunk, cached_tokens)
    if num_sequences == 1:
        return first_s
    shared = (prompt_tokens - 1) // block_size * block_size
    own_s = predict_prefill_s(cost, past=shared, tokens=prompt_tokens - shared, chunk=prefill_chunk)
    return first_s + (num_sequences - 1) * own_s


def blocks_needed(ask: Ask, block_size: int) -> int:
    """KV blocks of a request: the prompt once (its full blocks are shared), then each sequence's own output."""
    prompt_blocks = -(-ask.prompt_tokens // block_size)
    return prompt_blocks + ask.num_sequences * -(-ask.reserve_tokens // block_size)


def decode_step_s(ask: Ask, load: Load) -> float:
    """Predicted decode step once the request, and what waits there before it, has joined the running streams."""
    cost = load.cost
    joining = ask.num_sequences + load.waiting
    per_sequence = cost.a1 + cost.b3 + cost.b2 * ask.prompt_tokens
    return (load.decode_step_s or cost.a0) + joining * per_sequence


def alone_step_s(ask: Ask, load: Load) -> float:
    """Predicted decode step of the request's sequences with nothing beside them: no placement can be faster."""
    context = ask.num_sequences * ask.prompt_tokens
    return predict_step_s(load.cost, decodes=ask.num_sequences, decode_context=context)


def meets_targets(ask: Ask, load: Load, ttft_s: float, tpot_s: float) -> bool:
    """Whether both targets are predicted to be met. A TPOT target that no batch could meet here does not count."""
    in_time = ttft_s + load.cost.margin_s <= ask.slo.ttft_s
    return in_time and (tpot_s <= ask.slo.tpot_s or alone_step_s(ask, load) > ask.slo.tpot_s)


def phased_ttft_s(ask: Ask, load: Load, prefill_s: float) -> float:
    """TTFT from arrival on an alternating replica: waited, decode step in flight, backlog, own prefill."""
    return ask.waited_s + load.step_left_s + load.backlog_s + prefill_s


def cut_ttft_s(ask: Ask, load: Load, prefill_s: float, max_gap_s: float) -> float:
    """TTFT from arrival on an alternating replica that cuts its window where the slack of its streams ends.

    Slack goes first, as far as one gap may last. Then each TPOT target of time holds one decode step, and prefill gets
    the rest. Infinite where decode leaves none.
    """
    work_s = load.backlog_s + prefill_s
    step_s = decode_step_s(ask, load)
    free_s = min(work_s, max_gap_s, max(0.0, load.slack_s or 0.0))
    share = 1.0 - step_s / ask.slo.tpot_s if ask.slo.tpot_s > step_s else 0.0
    if work_s > free_s and share <= 0.0:
        return math.inf
    return ask.waited_s + step_s + free_s + ((work_s - free_s) / share if work_s > free_s else 0.0)


def before_s(ask: Ask, load: Load) -> float:
    """Seconds of prefill that come before the prompt where those with the nearest target that can be met come first."""
    return load.backlog_s - load.late_backlog_s if ask.ttft_left_s > 0.0 else load.backlog_s


def chunked_ttft_s(ask: Ask, load: Load, prefill_s: float, prefill_chunk: int, *, cautious: bool = False) -> float:
    """TTFT from arrival on a mixed replica under the deadline budget (`scheduling.token_budget`); of what waits there
    only what comes before the prompt counts, see `before_s`.

    Prefill first spends the slack of the tightest stream at full speed. After that each step may last one TPOT
    target, of which the decode rows take their part and the largest chunk that fits gets the rest. The margin by which
    a step is planned shorter is not lost: what it leaves of a stream's time is there for the next step. Unless new
    streams begin in every step, whose first token has no more than its target; `cautious` counts on that, and on late
    prompts in the way: once begun they are streams that slow those before whom they did not come. Without it replicas
    near the knee take so much that up to six of a hundred requests more are late.
    """
    work = (load.backlog_s if cautious else before_s(ask, load)) + prefill_s
    if load.running == 0:
        return ask.waited_s + work
    free = max(0.0, load.tightest_slack_s or 0.0)
    if work <= free:
        return ask.waited_s + load.step_left_s + load.decode_step_s + work
    chunk = largest_chunk(load, ask.slo.tpot_s - (load.cost.margin_s if cautious else 0.0), prefill_chunk)
    share = MIN_CHUNKED_SHARE
    if chunk > 0:
        with_chunk = load.decode_step_s + chunk * load.cost.a1 + chunk * chunk * load.cost.b1
        share = max(share, 1.0 - load.decode_step_s / with_chunk) if with_chunk > 0 else 1.0
    return ask.waited_s + load.step_left_s + load.decode_step_s + free + (work - free) / share


def guarded_wait_s(ask: Ask, load: Load, prefill_s: float) -> float:
    """How much longer prompts take on a prefill replica that still decodes streams of an earlier role.

    As on an alternating replica that cuts its window: slack goes first, then each TPOT target of time holds one decode
    step, and prefill gets the rest (`scheduling.role_guard`).
    """
    if load.guarded == 0:
        return 0.0
    work_s = load.backlog_s + prefill_s
    free_s = min(work_s, max(0.0, load.tightest_slack_s or 0.0))
    share = max(MIN_CHUNKED_SHARE, 1.0 - load.decode_step_s / max(ask.slo.tpot_s, load.decode_step_s))
    return load.step_left_s + free_s + (work_s - free_s) / share - work_s


def largest_chunk(load: Load, step_s: float, prefill_chunk: int) -> int:
    """Most prompt tokens whose step beside the running streams lasts at most `step_s`: the root of the quadratic, moved
    to where the predicted time itself says so."""
    beside_s, a1, b1 = load.decode_step_s, load.cost.a1, load.cost.b1
    if beside_s + a1 + b1 > step_s:
        return 0
    if beside_s + prefill_chunk * a1 + prefill_chunk * prefill_chunk * b1 <= step_s:
        return prefill_chunk
    spare_s = step_s - beside_s
    chunk = int(2.0 * spare_s / (a1 + math.sqrt(a1 * a1 + 4.0 * b1 * spare_s))) if spare_s > 0.0 else 0
    while beside_s + chunk * a1 + chunk * chunk * b1 > step_s:
        chunk -= 1
    while beside_s + (chunk + 1) * a1 + (chunk + 1) * (chunk + 1) * b1 <= step_s:
        chunk += 1
    return chunk

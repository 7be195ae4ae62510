"""The cost of one step as a pure function of its shape and a replica's coefficients."""

from __future__ import annotations

from contracts.views import StepCost


def predict_step_s(
    cost: StepCost,
    *,
    prefill: tuple[tuple[int, int], ...] = (),
    decodes: int = 0,
    decode_context: int = 0,
) -> float:
    """Predicted duration of one step in seconds, without margin.

    `prefill` holds `(past_tokens, chunk_tokens)` per prefill chunk; `decodes` counts decode rows; `decode_context`
    is the sum of their context lengths in tokens. Source: DCP (OSDI'26) for the terms.
    """
    tokens = decodes
    past_chunk = 0
    chunk_sq = 0
    for past, chunk in prefill:
        tokens += chunk
        past_chunk += past * chunk
        chunk_sq += chunk * chunk
    if tokens == 0:
        return 0.0
    return (
        cost.a0
        + cost.a1 * tokens
        + cost.b0 * past_chunk
        + cost.b1 * chunk_sq
        + cost.b2 * decode_context
        + cost.b3 * decodes
    )


def predict_prefill_s(cost: StepCost, *, past: int, tokens: int, chunk: int) -> float:
    """Predicted time to prefill `tokens` after `past` cached ones in chunks of at most `chunk`, nothing beside it."""
    total = 0.0
    while tokens > 0:
        size = min(chunk, tokens)
        total += predict_step_s(cost, prefill=((past, size),))
        past += size
        tokens -= size
    return total

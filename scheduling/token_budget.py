"""How many prefill tokens a step may take: `fixed(n)` (Sarathi-Serve) or the largest chunk that keeps a deadline.

The deadline form is SLOWeave's (arXiv 2609.07883): it needs only that the predicted time grows with the chunk, which
non-negative coefficients guarantee, and a binary search.
"""

from __future__ import annotations

from contracts.views import StepCost
from scheduling.step_shape import StepShape


def largest_chunk(
    cost: StepCost, shape: StepShape, *, past: int, limit: int, allowed_s: float, multiple: int = 1
) -> int:
    """The most tokens (at most `limit`) behind `past` that, added to `shape`, keep the step within `allowed_s`.

    `limit` itself, or the largest multiple of `multiple` below it that fits, or 0.
    """
    base = cost.a0 if shape.tokens == 0 else shape.predict_s(cost)
    per_token = cost.a1 + cost.b0 * past

    def fits(chunk: int) -> bool:
        return base + per_token * chunk + cost.b1 * chunk * chunk <= allowed_s

    if limit <= 0 or fits(limit):
        return max(0, limit)
    low, high = 0, (limit - 1) // multiple
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * multiple):
            low = middle
        else:
            high = middle - 1
    return low * multiple

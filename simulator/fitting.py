"""Cost models out of measured steps, and how well they fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from scheduling.profile_plan import fit_step_cost
from scheduling.step_shape import StepShape
from simulator.cost import Fitted, StepTimes, Table

Samples = Sequence[tuple[StepShape, Sequence[float]]]
"""Shapes of steps, each with the seconds that it took, one or more times."""

_KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048)
_SWEEPS = 4000


class Residuals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a model is from the mean of each point: mean and 95th percentile of the relative error without its sign,
    of `points` points. `noise` is the spread of a point's own steps (standard deviation of the logarithm)."""

    mape: float
    p95: float
    noise: float
    points: int


def fit(samples: Samples) -> Fitted:
    """`scheduling.step_cost` over the means of the points. Raises `ValueError` without a usable sample."""
    cost = fit_step_cost([(shape, fmean(durations)) for shape, durations in samples])
    return Fitted(a0=cost.a0, a1=cost.a1, b0=cost.b0, b1=cost.b1, b2=cost.b2, b3=cost.b3)


def tabulate(samples: Samples) -> Table:
    """A table over tokens, with a price of context read and of pairs attended; nothing ever negative.

    Non-negative least squares of the relative error by coordinate descent: the seconds at the first knot and what each
    further one adds, so that the table grows. Raises `ValueError` when the points have fewer than two token counts.
    """
    counts = sorted({shape.tokens for shape, _ in samples})
    knots = [knot for knot in _KNOTS if counts[0] <= knot <= counts[-1]] if counts else []
    if len(knots) < 2:
        raise ValueError("a table needs steps of several sizes")
    rows = []
    for shape, durations in samples:
        mean_s = fmean(durations)
        terms = [1.0, *(_share(shape.tokens, low, high, high == knots[-1]) for low, high in pairwise(knots))]
        terms += [shape.decode_context + shape.past, shape.past_chunk + shape.chunk_sq / 2]
        rows.append([term / mean_s for term in terms])
    found = _nonnegative(rows)
    points, total_s = [], 0.0
    for knot, added_s in zip(knots, found, strict=False):
        total_s += added_s
        points.append((knot, max(total_s, 1e-9)))
    return Table(points=tuple(points), context_s=found[-2], pair_s=found[-1])


def residuals(model: StepTimes, samples: Samples) -> Residuals:
    """How well a model tells the means of the points."""
    errors = sorted(abs(model.step_s(shape) / fmean(durations) - 1.0) for shape, durations in samples)
    logs = []
    for _, durations in samples:
        middle = fmean(math.log(duration_s) for duration_s in durations)
        logs += [(math.log(duration_s) - middle) ** 2 * _unbiased(len(durations)) for duration_s in durations]
    return Residuals(
        mape=fmean(errors),
        p95=errors[min(len(errors) - 1, math.ceil(0.95 * len(errors)) - 1)],
        noise=math.sqrt(fmean(logs)),
        points=len(errors),
    )


def _unbiased(count: int) -> float:
    return count / (count - 1) if count > 1 else 1.0


def _share(tokens: int, low: int, high: int, last: bool) -> float:
    """How far between two knots, beyond the last one as if the line went on."""
    along = (tokens - low) / (high - low)
    return max(0.0, along if last else min(1.0, along))


def _nonnegative(rows: list[list[float]]) -> list[float]:
    """The non-negative `x` that brings every `row @ x` closest to 1."""
    width = len(rows[0])
    scales = [math.sqrt(sum(row[i] ** 2 for row in rows)) or 1.0 for i in range(width)]
    scaled = [[row[i] / scales[i] for i in range(width)] for row in rows]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    wanted = [sum(row[i] for row in scaled) for i in range(width)]
    x = [0.0] * width
    for _ in range(_SWEEPS):
        moved = 0.0
        for i in range(width):
            if gram[i][i] <= 0.0:
                continue
            better = max(0.0, x[i] + (wanted[i] - sum(gram[i][j] * x[j] for j in range(width))) / gram[i][i])
            moved = max(moved, abs(better - x[i]))
            x[i] = better
        if moved < 1e-12:
            break
    return [value / scale for value, scale in zip(x, scales, strict=True)]

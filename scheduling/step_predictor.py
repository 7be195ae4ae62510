"""The step-time predictor, corrected online by recursive least squares with a forgetting factor.

Source: DCP (OSDI'26), which reports a mean error of 3.3 % for this form. Three guards of ours: coefficients never go
negative (a predicted time must grow with the work, or the chunk search would be wrong), a wild measurement counts only
as far as `MAX_SURPRISE`, and the covariance cannot grow without bound while steps of one shape teach nothing new.
Each equation is divided by the time of its step, so that relative errors count: a prefill step lasts as long as fifty
decode steps and would drown them. That time is the predicted or the measured one, whichever is less: divided by a
prediction that one hiccup had made far too long, the right measurements after it would weigh nothing and mend nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence as Seq

from contracts.views import StepCost
from scheduling.step_shape import NUM_TERMS, StepShape

SCALES = (1.0, 1e-2, 1e-5, 1e-5, 1e-3, 1e-1)
"""Brings the six terms of a usual step to the size of one, so that one covariance suits all."""

_, _S1, _S2, _S3, _S4, _S5 = SCALES
_AT = [[(11 - min(i, j)) * min(i, j) // 2 + max(i, j) for j in range(NUM_TERMS)] for i in range(NUM_TERMS)]
"""Where the covariance of two terms is kept, the three tuples in a row."""

MAX_SURPRISE = 4.0
MAX_STEP_S = 3600.0
_SHORTEST_S = 1e-6
_PRIOR_FLOOR = 1e-2
_PRIOR_SPREAD = 100.0  # (prior standard deviation of half the coefficient / 5 % measurement noise) squared
_MAX_GROWTH = 10.0


class ResidualWindow:
    """The last `size` residuals, kept sorted."""

    __slots__ = ("_ordered", "_recent", "_size", "_total")

    def __init__(self, size: int = 128) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._total = 0.0

    def add(self, residual: float) -> None:
        """Add one, forget the oldest."""
        recent, ordered = self._recent, self._ordered
        recent.append(residual)
        self._total += abs(residual)
        insort(ordered, residual)
        if len(recent) > self._size:
            oldest = recent.popleft()
            self._total -= abs(oldest)
            del ordered[bisect_left(ordered, oldest)]

    def upper(self, quantile: float) -> float:
        """The residual at `quantile`, rounded up to one that occurred; never below zero."""
        last = len(self._ordered) - 1
        return 0.0 if last < 0 else max(0.0, self._ordered[min(last, math.ceil(quantile * last))])

    def mean_abs(self) -> float:
        """Mean absolute residual; zero without any."""
        return max(0.0, self._total) / len(self._recent) if self._recent else 0.0


class StepPredictor:
    """Predicts the duration of a step and learns from each one measured.

    `cost` is the current model as a value; its `margin_s` is the upper residual quantile in seconds.
    `relative_margin` is the same quantile of relative residuals: decisions use it, because one margin in seconds
    cannot suit a decode step of 20 ms and a prefill step of 1 s.
    """

    __slots__ = (
        "_absolute",
        "_believed",
        "_cost",
        "_covariance",
        "_forgetting",
        "_limits",
        "_prior",
        "_quantile",
        "_relative",
        "_theta",
    )

    def __init__(self, start: StepCost, *, forgetting: float = 0.995, margin_quantile: float = 0.95) -> None:
        raw = (start.a0, start.a1, start.b0, start.b1, start.b2, start.b3)
        self._theta = [max(0.0, value) / scale for value, scale in zip(raw, SCALES, strict=True)]
        self._believed = self._theta
        self._prior = [_PRIOR_SPREAD * max(value, _PRIOR_FLOOR) ** 2 for value in self._theta]
        self._limits = [_MAX_GROWTH * variance for variance in self._prior]
        self._covariance = self._prior_covariance()
        self._forgetting = forgetting
        self._quantile = margin_quantile
        self._absolute = ResidualWindow()
        self._relative = ResidualWindow()
        self._cost: StepCost | None = self._cost_now(start.margin_s)

    @property
    def cost(self) -> StepCost:
        """The current model; made when somebody asks, because steps come oftener than questions."""
        if self._cost is None:
            self._cost = self._cost_now(self._absolute.upper(self._quantile))
        return self._cost

    @property
    def relative_margin(self) -> float:
        """Upper quantile of `(measured - predicted) / predicted`, at most 1.

        The first few residuals have no better quantile than their largest; one hiccup among them must not stop
        prefill beside streams altogether.
        """
        return min(1.0, self._relative.upper(self._quantile))

    @property
    def mape(self) -> float:
        """Mean absolute relative error of the predictions made before each of the last measurements."""
        return self._relative.mean_abs()

    def predict_s(self, shape: StepShape) -> float:
        """Expected duration in seconds."""
        return shape.predict_s(self.cost)

    def upper_s(self, shape: StepShape) -> float:
        """Duration that is exceeded only with the margin quantile's probability."""
        return shape.predict_s(self.cost) * (1.0 + self.relative_margin)

    def update(self, shape: StepShape, duration_s: float) -> None:
        """Learn from one step. Durations that cannot be (not positive, not below an hour) are ignored."""
        self.update_all(shape, (duration_s,))

    def update_all(self, shape: StepShape, durations_s: Seq[float]) -> None:
        """Learn from steps that followed each other: the first of this shape, and from each to the next each decode row
        has one token more of context."""
        tokens, context, decodes = shape.tokens, shape.decode_context, shape.decodes
        if tokens == 0:
            return
        x1, x2, x3, x5 = tokens * _S1, shape.past_chunk * _S2, shape.chunk_sq * _S3, decodes * _S5
        for duration_s in durations_s:
            x4 = context * _S4
            context += decodes
            if not (0.0 < duration_s < MAX_STEP_S):
                continue
            t0, t1, t2, t3, t4, t5 = self._believed
            predicted = t0 + t1 * x1 + t2 * x2 + t3 * x3 + t4 * x4 + t5 * x5
            target = shortest = duration_s
            if predicted > _SHORTEST_S:
                self._relative.add((duration_s - predicted) / predicted)
                target = min(max(target, predicted / MAX_SURPRISE), predicted * MAX_SURPRISE)
                shortest = target if target < predicted else predicted
            self._absolute.add(target - predicted)
            weight = 1.0 / (shortest if shortest > _SHORTEST_S else _SHORTEST_S)
            self._correct(weight, x1 * weight, x2 * weight, x3 * weight, x4 * weight, x5 * weight, target * weight)
            self._cost = None

    def _correct(self, x0: float, x1: float, x2: float, x3: float, x4: float, x5: float, target: float) -> None:
        """One equation more. The covariance is symmetric: of its 36 numbers 21 are kept, row by row from the diagonal
        on, in tuples of two rows and all others. Written out: this runs once a step."""
        (p00, p01, p02, p03, p04, p05), (p11, p12, p13, p14, p15), rest = self._covariance
        p22, p23, p24, p25, p33, p34, p35, p44, p45, p55 = rest
        t0, t1, t2, t3, t4, t5 = self._theta
        l0, l1, l2, l3, l4, l5 = self._limits
        grown = p00 > l0 or p11 > l1 or p22 > l2 or p33 > l3 or p44 > l4 or p55 > l5
        forgetting = 1.0 if grown else self._forgetting
        q0 = p00 * x0 + p01 * x1 + p02 * x2 + p03 * x3 + p04 * x4 + p05 * x5
        q1 = p01 * x0 + p11 * x1 + p12 * x2 + p13 * x3 + p14 * x4 + p15 * x5
        q2 = p02 * x0 + p12 * x1 + p22 * x2 + p23 * x3 + p24 * x4 + p25 * x5
        q3 = p03 * x0 + p13 * x1 + p23 * x2 + p33 * x3 + p34 * x4 + p35 * x5
        q4 = p04 * x0 + p14 * x1 + p24 * x2 + p34 * x3 + p44 * x4 + p45 * x5
        q5 = p05 * x0 + p15 * x1 + p25 * x2 + p35 * x3 + p45 * x4 + p55 * x5
        share = 1.0 / (forgetting + q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3 + q4 * x4 + q5 * x5)
        step = share * (target - t0 * x0 - t1 * x1 - t2 * x2 - t3 * x3 - t4 * x4 - t5 * x5)
        t0, t1, t2, t3, t4, t5 = (
            t0 + q0 * step,
            t1 + q1 * step,
            t2 + q2 * step,
            t3 + q3 * step,
            t4 + q4 * step,
            t5 + q5 * step,
        )
        self._theta = [t0, t1, t2, t3, t4, t5]
        grow = 1.0 / forgetting
        less = share * grow
        g0, g1, g2, g3, g4, g5 = q0 * less, q1 * less, q2 * less, q3 * less, q4 * less, q5 * less
        p00, p01, p02 = p00 * grow - g0 * q0, p01 * grow - g0 * q1, p02 * grow - g0 * q2
        p03, p04, p05 = p03 * grow - g0 * q3, p04 * grow - g0 * q4, p05 * grow - g0 * q5
        p11, p12, p13 = p11 * grow - g1 * q1, p12 * grow - g1 * q2, p13 * grow - g1 * q3
        p14, p15, p22 = p14 * grow - g1 * q4, p15 * grow - g1 * q5, p22 * grow - g2 * q2
        p23, p24, p25 = p23 * grow - g2 * q3, p24 * grow - g2 * q4, p25 * grow - g2 * q5
        p33, p34, p35 = p33 * grow - g3 * q3, p34 * grow - g3 * q4, p35 * grow - g3 * q5
        p44, p45, p55 = p44 * grow - g4 * q4, p45 * grow - g4 * q5, p55 * grow - g5 * q5
        rest = (p22, p23, p24, p25, p33, p34, p35, p44, p45, p55)
        self._covariance = (p00, p01, p02, p03, p04, p05), (p11, p12, p13, p14, p15), rest
        if p00 <= 0.0 or p11 <= 0.0 or p22 <= 0.0 or p33 <= 0.0 or p44 <= 0.0 or p55 <= 0.0:
            self._covariance = self._prior_covariance()  # rounding, after very many steps
        negative = t0 < 0.0 or t1 < 0.0 or t2 < 0.0 or t3 < 0.0 or t4 < 0.0 or t5 < 0.0
        self._believed = self._positive() if negative else self._theta

    def _prior_covariance(self) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        prior = self._prior
        flat = tuple(prior[i] if i == j else 0.0 for i in range(NUM_TERMS) for j in range(i, NUM_TERMS))
        return flat[:6], flat[6:11], flat[11:]

    def _positive(self) -> list[float]:
        """The coefficients with negative ones set to zero and the others moved to the best fit under that condition.

        A copy: moved estimates that went back into the recursion would be moved again by every step, and drift (a
        decode replica, whose tokens and rows are one number, came to believe in steps of 60 ms while each took 33).
        """
        first, second, rest = self._covariance
        theta, covariance = self._theta, (*first, *second, *rest)
        for _ in range(NUM_TERMS):
            least = min(theta)
            if least >= 0.0:
                return theta
            worst = theta.index(least)
            row = _AT[worst]
            shift = least / max(covariance[row[worst]], 1e-12)
            theta = [value - covariance[at] * shift for value, at in zip(theta, row, strict=True)]
            theta[worst] = 0.0
        return [max(0.0, value) for value in theta]

    def _cost_now(self, margin_s: float) -> StepCost:
        a0, a1, b0, b1, b2, b3 = self._believed
        return StepCost(a0=a0, a1=a1 * _S1, b0=b0 * _S2, b1=b1 * _S3, b2=b2 * _S4, b3=b3 * _S5, margin_s=margin_s)

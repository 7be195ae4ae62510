"""The step-time predictor of design §5, corrected online by recursive least squares with a forgetting factor.

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
from operator import mul

from contracts.views import StepCost
from scheduling.step_shape import NUM_TERMS, StepShape

SCALES = (1.0, 1e-2, 1e-5, 1e-5, 1e-3, 1e-1)
"""Brings the six terms of a usual step to the size of one, so that one covariance suits all."""

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
        self._recent.append(residual)
        self._total += abs(residual)
        insort(self._ordered, residual)
        if len(self._recent) > self._size:
            oldest = self._recent.popleft()
            self._total -= abs(oldest)
            del self._ordered[bisect_left(self._ordered, oldest)]

    def upper(self, quantile: float) -> float:
        """The residual at `quantile`, rounded up to one that occurred; never below zero."""
        if not self._ordered:
            return 0.0
        index = min(len(self._ordered) - 1, math.ceil(quantile * (len(self._ordered) - 1)))
        return max(0.0, self._ordered[index])

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
        "_covariance",
        "_forgetting",
        "_limits",
        "_prior",
        "_quantile",
        "_relative",
        "_theta",
        "cost",
        "num_updates",
    )

    def __init__(self, start: StepCost, *, forgetting: float = 0.995, margin_quantile: float = 0.95) -> None:
        raw = (start.a0, start.a1, start.b0, start.b1, start.b2, start.b3)
        self._theta = [max(0.0, value) / scale for value, scale in zip(raw, SCALES, strict=True)]
        self._prior = [_PRIOR_SPREAD * max(value, _PRIOR_FLOOR) ** 2 for value in self._theta]
        self._limits = [_MAX_GROWTH * variance for variance in self._prior]
        self._covariance = self._prior_covariance()
        self._forgetting = forgetting
        self._quantile = margin_quantile
        self._absolute = ResidualWindow()
        self._relative = ResidualWindow()
        self.num_updates = 0
        self.cost = start
        self._publish(start.margin_s)

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
        if shape.tokens == 0 or not (0.0 < duration_s < MAX_STEP_S):
            return
        predicted = self.predict_s(shape)
        target = duration_s
        if predicted > _SHORTEST_S:
            self._relative.add((duration_s - predicted) / predicted)
            target = min(max(target, predicted / MAX_SURPRISE), predicted * MAX_SURPRISE)
        self._absolute.add(target - predicted)
        weight = 1.0 / max(_SHORTEST_S, min(target, predicted) if predicted > _SHORTEST_S else target)
        row = [term * scale * weight for term, scale in zip(shape.terms(), SCALES, strict=True)]
        self._correct(row, target * weight)
        self.num_updates += 1
        self._publish(self._absolute.upper(self._quantile))

    def _correct(self, x: list[float], target: float) -> None:
        covariance, theta, forgetting = self._covariance, self._theta, self._forgetting
        if any(covariance[i][i] > self._limits[i] for i in range(NUM_TERMS)):
            forgetting = 1.0
        px = [sum(map(mul, row, x)) for row in covariance]
        denominator = forgetting + sum(map(mul, x, px))
        error = target - sum(map(mul, x, theta))
        for i in range(NUM_TERMS):
            gain = px[i] / denominator
            theta[i] += gain * error
            row = covariance[i]
            covariance[i] = [(row[j] - gain * px[j]) / forgetting for j in range(NUM_TERMS)]
        if min(covariance[i][i] for i in range(NUM_TERMS)) <= 0.0:  # rounding, after very many steps
            self._covariance = self._prior_covariance()

    def _prior_covariance(self) -> list[list[float]]:
        return [[self._prior[i] if i == j else 0.0 for j in range(NUM_TERMS)] for i in range(NUM_TERMS)]

    def _positive(self) -> list[float]:
        """The coefficients with negative ones set to zero and the others moved to the best fit under that condition.

        A copy: moved estimates that went back into the recursion would be moved again by every step, and drift (a
        decode replica, whose tokens and rows are one number, came to believe in steps of 60 ms while each took 33).
        """
        theta, covariance = list(self._theta), self._covariance
        for _ in range(NUM_TERMS):
            worst = min(range(NUM_TERMS), key=theta.__getitem__)
            if theta[worst] >= 0.0:
                break
            shift = theta[worst] / max(covariance[worst][worst], 1e-12)
            for i in range(NUM_TERMS):
                theta[i] -= covariance[i][worst] * shift
            theta[worst] = 0.0
        return [max(0.0, value) for value in theta]

    def _publish(self, margin_s: float) -> None:
        a0, a1, b0, b1, b2, b3 = (value * scale for value, scale in zip(self._positive(), SCALES, strict=True))
        self.cost = StepCost(a0=a0, a1=a1, b0=b0, b1=b1, b2=b2, b3=b3, margin_s=margin_s)

"""How far predictions were from what happened, by layout: running means of the absolute error."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from contracts.phase import Layout
from contracts.plan import Outcome, Plan


class LayoutAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Mean absolute errors of one layout's predictions, in seconds, over `requests` that ended by themselves. None
    where nothing was to compare."""

    layout: Layout
    requests: int
    ttft_error_s: float | None
    switch_wait_error_s: float | None
    tpot_error_s: float | None


@dataclass(slots=True)
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, predicted: float, happened: float | None) -> None:
        if happened is not None:
            self.total += abs(predicted - happened)
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


class Accuracy:
    """Takes every plan with its outcome."""

    def __init__(self) -> None:
        self._requests = dict.fromkeys(Layout, 0)
        self._errors = {layout: (_Mean(), _Mean(), _Mean()) for layout in Layout}

    def observe(self, plan: Plan, outcome: Outcome) -> None:
        """One request ended by itself, on its first placement."""
        self._requests[plan.layout] += 1
        ttft, switch_wait, tpot = self._errors[plan.layout]
        ttft.add(plan.prediction.ttft_s, outcome.ttft_s)
        switch_wait.add(plan.prediction.switch_wait_s, outcome.switch_wait_s)
        tpot.add(plan.prediction.tpot_s, outcome.tpot_s)

    def by_layout(self) -> tuple[LayoutAccuracy, ...]:
        """One line for each layout that served a request."""
        return tuple(
            LayoutAccuracy(
                layout=layout,
                requests=requests,
                ttft_error_s=self._errors[layout][0].value,
                switch_wait_error_s=self._errors[layout][1].value,
                tpot_error_s=self._errors[layout][2].value,
            )
            for layout, requests in self._requests.items()
            if requests
        )

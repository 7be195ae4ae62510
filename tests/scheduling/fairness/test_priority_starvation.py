"""Priorities at the router under endless overload: the high ones come first, and the low one is still served."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import Dispatch, PrefillFinished, RequestEnded, ViewReported
from contracts.plan import Outcome
from scheduling.cluster_core import ClusterCore

AGED_AFTER, SHARE, TTFT_S, PROMPT_S = 2.0, 0.25, 1.0, 0.1
PER_ROUND, ROUND_S = 4, 0.2
ENDED = Outcome(ttft_s=1.0, switch_wait_s=0.0, tpot_s=0.1, output_tokens=4, finish="length")


class Overloaded:
    """One replica that prefills two 100 ms prompts in 0.2 s at most, and four such of priority `high` in that time."""

    def __init__(self, cluster: Any, high: int) -> None:
        self.cluster, self.high, self.now, self.made = cluster, high, 0.0, 0
        self.core: ClusterCore = cluster.core(
            aged_after=AGED_AFTER, forced_share=SHARE, pending_deadline_s=500.0, max_pending=4000, max_pending_s=400.0
        )
        self.core.handle(cluster.joined("a", slack=0.0), 0.0)
        self.placed_at: dict[str, float] = {}
        self.submitted = 0
        self.running: list[str] = []

    def _note(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.placed_at[action.request_id] = self.now
                self.submitted = max(self.submitted, action.submit_index)
                self.running.append(action.request_id)

    def arrive(self, name: str, priority: int, **changes: Any) -> None:
        self._note(self.core.handle(self.cluster.arrived(name, 100, priority=priority, **changes), self.now))

    def round(self) -> None:
        for _ in range(PER_ROUND):
            self.made += 1
            self.arrive(f"high{self.made}", self.high)
        for name in self.running:
            self.core.handle(PrefillFinished(name), self.now)
            self.core.handle(RequestEnded(name, ENDED), self.now)
        self.running.clear()
        view = self.cluster.view("a", slack=PROMPT_S * 1.05, acked_submit_index=self.submitted)
        self._note(self.core.handle(ViewReported(view), self.now))
        self.now += ROUND_S


@pytest.mark.parametrize("high", [1, 4])
def test_a_low_priority_is_served_within_the_stated_bound(cluster: Any, high: int) -> None:
    """Ageing puts it before all that came `d` seconds after it, d = difference x `aged_after` x TTFT target; what came
    before that takes its prefill time over `forced_share`: it waits d + (work until d + own) / share at most."""
    fleet = Overloaded(cluster, high)
    for _ in range(10):
        fleet.round()
    fleet.arrive("low", 0)
    began = fleet.now
    ahead_s = fleet.core.placement.pending.prefill_s
    outrank_s = high * AGED_AFTER * TTFT_S
    bound_s = outrank_s + (ahead_s + PER_ROUND * outrank_s / ROUND_S * PROMPT_S + PROMPT_S) / SHARE
    while "low" not in fleet.placed_at and fleet.now - began <= bound_s:
        fleet.round()
    assert "low" in fleet.placed_at
    # and not at once: the high ones came first
    before = [name for name, at in fleet.placed_at.items() if name.startswith("high") and began <= at]
    assert len(before) >= 5


def test_a_request_of_n_counts_n_times_in_the_queue(cluster: Any) -> None:
    """SCH-9: a bound of 8 takes a request for 8, not one for 9 beside others; alone even that one waits its turn."""
    core = cluster.core(max_pending=8)
    core.handle(cluster.joined("a", slack=0.0), 0.0)
    core.handle(cluster.arrived("first", num_sequences=2), 0.0)
    core.handle(cluster.arrived("six", num_sequences=6), 0.0)
    assert core.pending_count == 2
    (refused,) = [a for a in core.handle(cluster.arrived("one"), 0.0) if hasattr(a, "error")]
    assert (refused.error.status, refused.request_id) == (429, "one")
    assert refused.error.retry_after_s is not None
    alone = cluster.core(max_pending=8)
    alone.handle(cluster.joined("a", slack=0.0), 0.0)
    alone.handle(cluster.arrived("nine", num_sequences=9), 0.0)
    assert alone.pending_count == 1

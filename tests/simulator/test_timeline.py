"""Phases of replicas, written down during a run: whole, in order, bounded, and without changing what happens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from contracts.errors import ConfigError
from contracts.phase import Phase
from simulator import timeline as module
from simulator.run import simulate
from simulator.scenarios import small
from simulator.timeline import Span, Timeline


def test_spans_hold_the_busy_time_by_phase_and_the_report_is_the_same() -> None:
    scenario = small(alternating=2, rate=4.0, duration_s=10.0)
    seen = Timeline()
    report = simulate(scenario, seen)
    assert report == simulate(scenario)
    spans = seen.spans()
    assert list(spans) == ["alternating-0", "alternating-1"]
    for replica in report.replicas:
        mine = spans[replica.replica_id]
        assert all(early.until_s <= late.from_s for early, late in pairwise(mine))
        for phase, busy_s in ((Phase.PREFILL, replica.prefill_s), (Phase.DECODE, replica.decode_s)):
            assert sum(s.until_s - s.from_s for s in mine if s.phase is phase) == pytest.approx(busy_s, rel=0.02)


def test_only_what_begins_in_the_stretch_is_kept() -> None:
    seen = Timeline(2.0, 4.0)
    for at_s in (1.0, 2.0, 3.5, 4.0):
        seen.ran("a", at_s, 1.0, Phase.DECODE)
    assert seen.spans() == {"a": (Span(2.0, 3.0, Phase.DECODE), Span(3.5, 4.5, Phase.DECODE))}


def test_steps_of_one_phase_are_one_span_and_steps_in_flight_do_not_overlap() -> None:
    seen = Timeline()
    for at_s, phase in ((0.0, Phase.DECODE), (1.0, Phase.DECODE), (1.5, Phase.PREFILL), (1.6, Phase.PREFILL)):
        seen.ran("a-10", at_s, 1.0, phase)
    seen.ran("a-9", 0.0, 1.0, Phase.MIXED)
    assert list(seen.spans()) == ["a-9", "a-10"]
    assert seen.spans()["a-10"] == (Span(0.0, 2.0, Phase.DECODE), Span(2.0, 2.6, Phase.PREFILL))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 3)
    seen = Timeline()
    for at in range(9):
        seen.ran("a", 2.0 * at, 1.0, Phase.DECODE)
    assert len(seen.spans()["a"]) == 3
    assert seen.cut


@pytest.mark.parametrize(("begin", "end"), [(-1.0, 2.0), (2.0, 2.0), (3.0, 1.0), (float("nan"), 1.0)])
def test_a_stretch_must_be_one(begin: float, end: float) -> None:
    with pytest.raises(ConfigError, match="timeline"):
        Timeline(begin, end)

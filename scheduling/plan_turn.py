"""Which macro instance takes a request: EcoServe (OSDI'26, §3.3) says how one of them rolls, not which of several.

Each macro instance has one candidate, the first replica in its cyclic order that passes. Among those that meet both
targets the request stays with the macro instance that took the last one, unless another would have it decode earlier
by more than `macro.stay` of its TTFT target. So prompts that follow each other lengthen one window and leave the
streams of the other macro instances alone, and a backlog that has grown to that size sends the next one elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_phased import REASONS_SHOWN, plan_phased


def plan_turn(ask: Ask, rings: Sequence[Sequence[Load]], config: ClusterCoreConfig) -> Candidate | str:
    """The best candidate of all macro instances (see the module), or why none has one. The first of `rings` is that of
    the macro instance which took the last request."""
    if len(rings) <= 1:
        return plan_phased(ask, rings[0] if rings else (), config)
    best: Candidate | None = None
    best_s = 0.0
    objections: list[str] = []
    for position, ring in enumerate(rings):
        found = plan_phased(ask, ring, config)
        if isinstance(found, str):
            objections.append(found)
            continue
        lateness_s = _lateness_s(ask, found) - (config.macro.stay * ask.slo.ttft_s if position == 0 else 0.0)
        if best is None or lateness_s < best_s:
            best, best_s = found, lateness_s
    if best is not None:
        return best
    more = f"; {len(objections) - REASONS_SHOWN} more" if len(objections) > REASONS_SHOWN else ""
    return "; ".join(objections[:REASONS_SHOWN]) + more


def _lateness_s(ask: Ask, found: Candidate) -> float:
    """When it decodes, plus the slack it takes from running streams; behind all others if it misses a target."""
    spent_s = 0.0 if found.load.slack_s is None else found.prefill_s
    return found.ready_s + spent_s + (0.0 if found.meets else 1e6)

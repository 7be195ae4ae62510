"""What the way from one role mix to another costs, and whether it pays. Pure.

A replica that becomes a prefill replica keeps its streams until they end (`scheduling.role_guard`), and one stream
alone needs a decode step in each TPOT target of time. Until the last one has ended the new pool carries far less than
it will, often less than the mix that was given up. So a change has to bring in more than it costs within the time for
which the load may be expected to stay as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from contracts.phase import Role
from contracts.views import ReplicaView
from scheduling.fleet_capacity import RoleRates, Site, guarded_prefill_rate
from scheduling.fleet_mixes import Mix, carried
from scheduling.fleet_workload import Demand

LATE_AT_LIMIT = 0.05
"""Share of requests that miss a target where as much is asked for as is carried: no queue is empty then."""
EULER = 0.5772
"""The last of n exponential times takes about ln(n) + EULER + 1/2n times their mean."""


FREE_SHARE = 0.1
"""A way that takes no more than this share of the time within which it has to pay costs next to nothing."""


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """On the way a mix `carries` so many requests per second, for `lasts_s`."""

    carries: float
    lasts_s: float


def passage(
    views: Sequence[ReplicaView], goal: Mix, demand: Demand, rates: RoleRates, site: Site, output_tokens: float
) -> Passage:
    """From these replicas to a mix. Those with the fewest streams become prefill replicas; streams that run now end
    after `output_tokens` more on average, as outputs do whose length tells nothing of what is left."""
    prefilling = [view for view in views if view.role is Role.PREFILL][: goal.prefill]
    others = sorted((view for view in views if view.role is not Role.PREFILL), key=_streams)
    prefilling += others[: goal.prefill - len(prefilling)]
    guarding = [view for view in prefilling if (view.guarded if view.role is Role.PREFILL else _streams(view))]
    if not guarding:
        return Passage(carries=carried(goal, rates), lasts_s=0.0)
    most = max(view.guarded if view.role is Role.PREFILL else _streams(view) for view in guarding)
    step_s = max(view.decode_step_s or site.cost.a0 for view in guarding)
    slowed = guarded_prefill_rate(demand, site, step_s) * len(guarding)
    prefill = (slowed + rates.prefill * (len(prefilling) - len(guarding))) / len(prefilling)
    return Passage(
        carries=carried(goal, msgspec.structs.replace(rates, prefill=min(prefill, rates.prefill))),
        lasts_s=output_tokens * demand.slo.tpot_s * until_last(most),
    )


def until_last(streams: int) -> float:
    """When the last of so many streams ends, in mean lengths of what each of them still has to say."""
    return math.log(streams) + EULER + 0.5 / streams if streams > 0 else 0.0


def served(rate: float, carries: float, comfort: float) -> float:
    """Requests per second within their targets of `rate` that arrive. Up to the share `comfort` of what is carried all
    of them, at the limit all but `LATE_AT_LIMIT`."""
    if carries <= 0.0:
        return 0.0
    strained = min(1.0, max(0.0, (rate / carries - comfort) / max(1e-9, 1.0 - comfort)))
    return min(rate, carries) * (1.0 - LATE_AT_LIMIT * strained)


def gained(rate: float, now: float, then: float, way: Passage, within_s: float, comfort: float) -> float:
    """Requests that a change brings in within that time, less those that it costs. `now`, `then`: what is carried."""
    before = served(rate, now, comfort)
    way_s = min(way.lasts_s, within_s)
    after = served(rate, then, comfort) - before
    return after * (within_s - way_s) + (served(rate, way.carries, comfort) - before) * way_s


def _streams(view: ReplicaView) -> int:
    return view.running - view.receiving

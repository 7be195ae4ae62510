"""What is asked of the fleet for one request, at a cost that does not grow with it."""

from __future__ import annotations

from contracts.cluster_io import ClientRequestArrived, OnUnavailable
from contracts.errors import InvalidRequest
from contracts.phase import Layout, Role
from scheduling.cluster_availability import (
    demanded_layout,
    may_fall_back,
    most_at_once,
    ways_to_serve,
    why_request_unservable,
    why_too_large,
)
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_index import LIST_ALL, WARM, warmest
from scheduling.plan_choice import plan_request
from scheduling.plan_disaggregated import SPARED_PROMPTS
from scheduling.plan_inputs import Ask, Candidate, FleetLoads, Load
from scheduling.plan_room import place_objection
from scheduling.prefix_index import PrefixIndex

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_MIXED, _ALTERNATING, _DECODE = Role.MIXED, Role.ALTERNATING, Role.DECODE


def loads_for(
    record: RequestRecord, fleet: Fleet, prefixes: PrefixIndex, now: float, reserve_tokens: int
) -> FleetLoads:
    """The replicas that come into question for a request; all of a small fleet, or where not every one could hold it.
    `reserve_tokens` is the output length expected."""
    few = len(fleet) > LIST_ALL and fleet.holds_anywhere(record.prompt_tokens + 1, record.asked.num_sequences)
    warm = warmest(prefixes.cached_for(record), WARM) if few else None
    return fleet.loads(now, reserve_tokens, record.avoid, warm)


def may_take(ask: Ask, load: Load, config: ClusterCoreConfig) -> bool:
    """Whether a plan for `ask` could have a part for this replica; no is certain, and far cheaper than a plan."""
    role = load.role
    if role is _MIXED:
        return isinstance(plan_request(ask, FleetLoads(mixed=(load,)), config), Candidate)
    if role is _ALTERNATING:
        return isinstance(plan_request(ask, FleetLoads(rings=((load,),)), config), Candidate)
    if role is _DECODE:
        return place_objection(ask, load) is None
    return load.closed is None and (load.waiting <= SPARED_PROMPTS or load.backlog_s <= ask.ttft_left_s)


_Demand = tuple[Layout | None, OnUnavailable | None]
"""What a request demands beside the deployment's settings."""


class Servable:
    """Whether a request can be served at all, looked up anew only when replicas, roles or links have changed."""

    def __init__(self, fleet: Fleet, config: ClusterCoreConfig) -> None:
        self._fleet = fleet
        self._config = config
        self._why_not: dict[_Demand, str | None] = {}
        self._most: dict[_Demand, tuple[int, int] | None] = {}
        self._known_of = -1

    def why_not(self, asked: ClientRequestArrived) -> str | None:
        """As `why_request_unservable`. The answer is the same for all requests that every replica could hold."""
        fleet, config = self._fleet, self._config
        if not len(fleet) or not fleet.holds_anywhere(asked.prompt_tokens + 1, asked.num_sequences):
            return why_request_unservable(fleet, asked, config)
        key = self._key(asked)
        if key not in self._why_not:
            self._why_not[key] = why_request_unservable(fleet, asked, config)
        return self._why_not[key]

    def too_large(self, asked: ClientRequestArrived) -> InvalidRequest | None:
        """Why no live replica could ever take the request, or None."""
        key = self._key(asked)
        if key not in self._most:
            layout, falls_back = demanded_layout(asked.layout, self._config), may_fall_back(asked, self._config)
            self._most[key] = most_at_once(ways_to_serve(self._fleet, layout, falls_back))
        return why_too_large(asked, self._most[key])

    def _key(self, asked: ClientRequestArrived) -> _Demand:
        if self._known_of != self._fleet.changes:
            self._known_of, self._why_not, self._most = self._fleet.changes, {}, {}
        return asked.layout, asked.on_unavailable

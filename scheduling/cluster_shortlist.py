"""What is asked of the fleet for one request, at a cost that does not grow with it."""

from __future__ import annotations

from contracts.cluster_io import ClientRequestArrived
from contracts.phase import Layout
from scheduling.cluster_availability import demanded_layout, may_fall_back, why_request_unservable
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_index import LIST_ALL, WARM, warmest
from scheduling.plan_inputs import FleetLoads
from scheduling.prefix_index import PrefixIndex


def loads_for(
    record: RequestRecord, fleet: Fleet, prefixes: PrefixIndex, now: float, reserve_tokens: int
) -> FleetLoads:
    """The replicas that come into question for a request; all of a small fleet, or where not every one could hold it.
    `reserve_tokens` is the output length expected."""
    few = len(fleet) > LIST_ALL and fleet.holds_anywhere(record.prompt_tokens + 1, record.asked.num_sequences)
    warm = warmest(prefixes.cached_for(record), WARM) if few else None
    return fleet.loads(now, reserve_tokens, record.avoid, warm)


class Servable:
    """Whether waiting can help a request, looked up anew only when replicas, roles or links have changed."""

    def __init__(self, fleet: Fleet, config: ClusterCoreConfig) -> None:
        self._fleet = fleet
        self._config = config
        self._known: dict[tuple[Layout | None, bool], str | None] = {}
        self._known_of = -1

    def why_not(self, asked: ClientRequestArrived) -> str | None:
        """As `why_request_unservable`. The answer is the same for all requests that every replica could hold."""
        fleet, config = self._fleet, self._config
        if not len(fleet) or not fleet.holds_anywhere(asked.prompt_tokens + 1, asked.num_sequences):
            return why_request_unservable(fleet, asked, config)
        if self._known_of != fleet.changes:
            self._known_of, self._known = fleet.changes, {}
        key = (demanded_layout(asked.layout, config), may_fall_back(asked, config))
        if key not in self._known:
            self._known[key] = why_request_unservable(fleet, asked, config)
        return self._known[key]

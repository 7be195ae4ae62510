"""Keeps the role label of each replica's pod at the role it has, for `kubectl get pods -L` and for selectors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from contracts.discovery import FleetSide, ReplicaStanding
from contracts.phase import Role
from k8s.access import PATCH_POD
from k8s.api import ApiClient, ApiError, ApiUnreachableError
from k8s.labels import ROLE_LABEL
from k8s.objects import Bookmark

log = logging.getLogger("phaseserve.k8s")

EVERY_S = 1.0
AT_ONCE = 5
CALL_S = 5.0
PAUSE_S = 30.0

Labelled = dict[str, tuple[str, Role]]


def due(standings: Mapping[str, ReplicaStanding], labelled: Labelled, at_most: int) -> list[ReplicaStanding]:
    """Whose label is to be written next: not yet for this process and role. Those that are gone are forgotten."""
    for gone in labelled.keys() - standings.keys():
        del labelled[gone]
    wanted = [s for s in standings.values() if labelled.get(s.replica_id) != (s.incarnation, s.role)]
    return sorted(wanted, key=lambda standing: standing.replica_id)[:at_most]


class RoleLabels:
    """`run` writes while `leads()`, a few at a time."""

    def __init__(self, api: ApiClient, fleet: FleetSide, leads: Callable[[], bool]) -> None:
        self._api, self._fleet, self._leads = api, fleet, leads
        self._labelled: Labelled = {}
        self._paused_until = 0.0
        self.patches = self.errors = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if not self._leads():
                self._labelled.clear()
            elif time.monotonic() >= self._paused_until:
                for standing in due(self._fleet.standings(), self._labelled, AT_ONCE):
                    await self._label(standing)

    async def _label(self, standing: ReplicaStanding) -> None:
        body = {"metadata": {"labels": {ROLE_LABEL: standing.role.value}}}
        try:
            await self._api.call(PATCH_POD, Bookmark, name=standing.replica_id, body=body, timeout_s=CALL_S)
            self.patches += 1
        except ApiUnreachableError:
            self.errors += 1
            return
        except ApiError as error:
            self.errors += 1
            if error.status not in (404, 422):  # no pod of this name: a replica that runs elsewhere
                self._paused_until = time.monotonic() + PAUSE_S
                log.warning("the role of pod %s cannot be written: %s", standing.replica_id, error)
                return
        self._labelled[standing.replica_id] = (standing.incarnation, standing.role)

"""Follows the fleet's proposals: looks at the workloads, chooses by `k8s.scaling_rules`, drains, patches. No policy."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from contracts.cluster_io import ProposeReplicas, ReplicaDrainRequested
from contracts.discovery import FleetSide
from k8s.access import (
    GET_DEPLOYMENT_SCALE,
    GET_STATEFULSET_SCALE,
    LIST_AUTOSCALERS,
    PATCH_DEPLOYMENT_SCALE,
    PATCH_POD,
    PATCH_STATEFULSET_SCALE,
)
from k8s.api import ApiClient, ApiError, ApiUnreachableError
from k8s.backoff import Backoff
from k8s.cluster_events import ClusterEvents
from k8s.config import PoolConfig, ScalingConfig
from k8s.labels import DELETION_COST, FIRST_TO_GO
from k8s.objects import AutoscalerList, Bookmark, Scale
from k8s.scaling_rules import Grow, PoolState, Refused, Shrink, choose, claims, is_empty, no_longer

log = logging.getLogger("phaseserve.k8s")

CALL_S = 5.0
MAX_BACKOFF_S = 15.0
_GET = {"StatefulSet": GET_STATEFULSET_SCALE, "Deployment": GET_DEPLOYMENT_SCALE}
_PATCH = {"StatefulSet": PATCH_STATEFULSET_SCALE, "Deployment": PATCH_DEPLOYMENT_SCALE}


@dataclass(slots=True)
class _Leaving:
    """A pool that shrinks once its victim is empty, or at `latest`."""

    shrink: Shrink
    latest: float


class Scaler:
    """`run` acts while `leads()`; `propose` is told what the fleet wants. The newest proposal counts."""

    def __init__(
        self,
        api: ApiClient,
        config: ScalingConfig,
        fleet: FleetSide,
        events: ClusterEvents,
        leads: Callable[[], bool],
    ) -> None:
        self._api, self._config, self._fleet, self._events, self._leads = api, config, fleet, events, leads
        self._proposal: tuple[ProposeReplicas, float] | None = None
        self._leaving: _Leaving | None = None
        self._sizes: dict[str, tuple[int, float]] = {}
        self.looked = False
        self._trouble: str | None = None
        self._backoff = Backoff(MAX_BACKOFF_S)
        self._refusal = ""
        self.changes = self.refusals = self.errors = 0

    def propose(self, proposal: ProposeReplicas) -> None:
        """What the fleet wants now."""
        self._proposal = (proposal, time.monotonic())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._turn()
            except (ApiError, ApiUnreachableError) as error:
                self._failed(error)
                if isinstance(error, ApiError) and error.status == 404:
                    self._leaving = None  # the workload is gone
                await asyncio.sleep(self._backoff.failed(random.random()))
            else:
                self._trouble = None
                self._backoff.worked()
            await asyncio.sleep(self._config.every_s)

    async def _turn(self) -> None:
        if not self._leads():
            self._leaving, self._proposal, self.looked = None, None, False
            self._sizes.clear()
            return
        if not self.looked:  # who has just come to lead does not know when sizes changed last: it waits
            await self._look()
            self.looked = True
        if self._leaving is not None:
            await self._go_on(self._leaving)
            return
        if self._proposal is None:
            return
        taken = self._proposal
        proposal, told_at = taken
        if time.monotonic() - told_at > self._config.keep_s:
            self._proposal = None
            return
        pools = await self._look()
        choice = choose(proposal, pools, self._fleet.standings(), self._config, time.monotonic())
        match choice:
            case Grow(pool, to):
                await self._resize(pool, to, proposal.reason)
            case Shrink():
                await self._begin(choice, proposal)
            case Refused():
                await self._refuse(choice)
        if self._proposal is taken:  # not what came while this one was followed
            self._proposal = None

    async def _look(self) -> list[PoolState]:
        """All pools as they are."""
        claimed = await self._claims()
        return [await self._look_at(pool, claimed.get((pool.kind, pool.workload))) for pool in self._config.pools]

    async def _claims(self) -> dict[tuple[str, str], str]:
        autoscalers = await self._api.call(LIST_AUTOSCALERS, AutoscalerList, timeout_s=CALL_S)
        return claims(autoscalers.items or ())

    async def _look_at(self, pool: PoolConfig, claimed_by: str | None) -> PoolState:
        scale = await self._api.call(_GET[pool.kind], Scale, name=pool.workload, timeout_s=CALL_S)
        now = time.monotonic()
        size, changed_at = self._sizes.get(pool.workload, (None, now))
        if size != scale.spec.replicas:
            changed_at = now
            self._sizes[pool.workload] = (scale.spec.replicas, now)
        return PoolState(
            config=pool,
            wanted=scale.spec.replicas,
            present=scale.status.replicas,
            uid=scale.metadata.uid,
            version=scale.metadata.resource_version,
            claimed_by=claimed_by,
            changed_at=changed_at,
        )

    async def _begin(self, shrink: Shrink, proposal: ProposeReplicas) -> None:
        """Nobody is told to go who cannot be spared."""
        if shrink.victim is not None:
            refusal = self._fleet.why_not_drain(shrink.victim)
            if refusal is not None:
                await self._refuse(Refused(refusal.message, shrink.pool))
                return
            if shrink.pool.config.kind == "Deployment":
                cost = {"metadata": {"annotations": {DELETION_COST: FIRST_TO_GO}}}
                await self._api.call(PATCH_POD, Bookmark, name=shrink.victim, body=cost, timeout_s=CALL_S)
            log.info("%s is drained: %s", shrink.victim, proposal.reason)
            self._fleet.tell(ReplicaDrainRequested(shrink.victim))
        self._leaving = _Leaving(shrink, time.monotonic() + self._config.drain_s)
        await self._go_on(self._leaving)

    async def _go_on(self, leaving: _Leaving) -> None:
        shrink = leaving.shrink
        if not is_empty(shrink.victim, self._fleet.standings()) and time.monotonic() < leaving.latest:
            return
        config = shrink.pool.config
        pool = await self._look_at(config, (await self._claims()).get((config.kind, config.workload)))
        refusal = no_longer(shrink, pool, time.monotonic() - leaving.latest, self._config)
        if refusal is not None:
            await self._refuse(refusal)
        else:
            await self._resize(pool, shrink.to, f"{shrink.victim or 'its last pod'} can be spared")
        self._leaving = None

    async def _resize(self, pool: PoolState, to: int, why: str) -> None:
        """Raises `ApiError` 409 where somebody was faster: then all is looked at again."""
        body = {"metadata": {"resourceVersion": pool.version}, "spec": {"replicas": to}}
        if not self._leads():
            return
        await self._api.call(_PATCH[pool.config.kind], Scale, name=pool.config.workload, body=body, timeout_s=CALL_S)
        self._sizes[pool.config.workload] = (to, time.monotonic())
        self.changes += 1
        self._refusal = ""
        told = f"{pool.config.workload} has {to} pods instead of {pool.wanted}: {why}"
        log.info("%s", told)
        self._fleet.note("scaled", told, before=pool.wanted, after=to)
        await self._events.say(pool, "Normal", "Scaled", told)

    async def _refuse(self, refused: Refused) -> None:
        self.refusals += 1
        if refused.reason != self._refusal:
            self._refusal = refused.reason
            log.log(logging.WARNING if refused.loud else logging.INFO, "not scaled: %s", refused.reason)
            self._fleet.note("scaling_refused", refused.reason)
        if refused.loud and refused.pool is not None:
            await self._events.say(refused.pool, "Warning", "ScalingRefused", refused.reason)

    def _failed(self, error: ApiError | ApiUnreachableError) -> None:
        self.errors += 1
        told = str(error)
        if told != self._trouble:
            self._trouble = told
            log.warning("the fleet's size cannot be looked at or changed now: %s", told)

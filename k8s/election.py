"""Leader election over a Lease: leads whenever it may, stops in time whatever the API server does, hands over at once.

A timer of our own, not the answer of a call, ends leading: a server that hangs cannot keep anybody in office.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from k8s.access import CREATE_LEASE, GET_LEASE, UPDATE_LEASE
from k8s.api import ApiClient, ApiError, ApiUnreachableError
from k8s.config import ElectionConfig
from k8s.lease_rules import LeaseView, must_stop, released
from k8s.objects import Lease, LeaseSpec

log = logging.getLogger("phaseserve.k8s")

RELEASE_S = 2.0
NOBODY = "nobody yet"


class Election:
    """`on_change` hears who leads: None for this one, else the other's name (`NOBODY` while that is not known).

    It is called on the event loop, and when leading ends it returns before anything else happens: whatever only a
    leader may do has to be over by then.
    """

    def __init__(
        self, api: ApiClient, config: ElectionConfig, identity: str, on_change: Callable[[str | None], None]
    ) -> None:
        self._api, self._config, self._on_change = api, config, on_change
        self._view = LeaseView(identity, config.duration_s)
        self._renewed_at: float | None = None
        self._told: str | None = ""
        self._trouble: str | None = None
        self.errors = 0
        self.terms = 0

    @property
    def leads(self) -> bool:
        """Whether this one does, at this very moment: also right after the process stood still."""
        renewed_at = self._renewed_at
        if self._told is not None or renewed_at is None:
            return False
        return not must_stop(renewed_at, time.monotonic(), self._config.deadline_s)

    async def run(self) -> None:
        """Until cancelled; then the lease is given away."""
        self._tell(NOBODY)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew())
                group.create_task(self._guard())
        finally:
            held, self._renewed_at = self._renewed_at is not None, None
            self._tell(NOBODY)
            if held:
                await asyncio.shield(self._release())

    async def _renew(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._config.retry_s):
                    held = await self._try()
            except (ApiError, ApiUnreachableError, TimeoutError) as error:
                self._failed(error)
            else:
                self._trouble = None
                self._settle(began if held else None)
            spent_s = time.monotonic() - began
            await asyncio.sleep(max(0.0, self._config.retry_s * random.uniform(0.8, 1.0) - spent_s))

    async def _guard(self) -> None:
        """Ends leading in time, while a call is under way or whatever else goes on."""
        while True:
            if self._renewed_at is None:
                await asyncio.sleep(self._config.retry_s / 4)
                continue
            ends_at = self._renewed_at + self._config.deadline_s
            await asyncio.sleep(max(0.0, min(ends_at - time.monotonic(), self._config.retry_s)))
            renewed_at = self._renewed_at
            if renewed_at is not None and must_stop(renewed_at, time.monotonic(), self._config.deadline_s):
                log.warning("no longer leading: the lease could not be renewed for %g s", self._config.deadline_s)
                self._settle(None)

    async def _try(self) -> bool:
        """Whether the lease is ours now."""
        name, timeout_s = self._config.lease, self._config.retry_s
        wall = datetime.datetime.now(datetime.UTC)
        try:
            lease = await self._api.call(GET_LEASE, Lease, name=name, timeout_s=timeout_s)
        except ApiError as error:
            if error.status != 404:
                raise
            body = self._body(self._view.taken(None, wall), {"name": name})
            await self._api.call(CREATE_LEASE, Lease, body=body, timeout_s=timeout_s)
            return True
        if not self._view.may_take(lease, time.monotonic()):
            return False
        await self._write(lease, self._view.taken(lease, wall), timeout_s)
        return True

    async def _release(self) -> None:
        wall = datetime.datetime.now(datetime.UTC)
        with contextlib.suppress(ApiError, ApiUnreachableError, TimeoutError):  # then it runs out by itself
            async with asyncio.timeout(RELEASE_S):
                lease = await self._api.call(GET_LEASE, Lease, name=self._config.lease, timeout_s=RELEASE_S)
                if lease.spec.holder_identity == self._view.identity:
                    await self._write(lease, released(lease, wall), RELEASE_S)
                    log.info("gave the lease %s away", self._config.lease)

    async def _write(self, lease: Lease, spec: LeaseSpec, timeout_s: float) -> None:
        metadata: dict[str, Any] = {"name": lease.metadata.name, "resourceVersion": lease.metadata.resource_version}
        if lease.metadata.labels:
            metadata["labels"] = lease.metadata.labels
        body = self._body(spec, metadata)
        await self._api.call(UPDATE_LEASE, Lease, name=lease.metadata.name, body=body, timeout_s=timeout_s)

    def _body(self, spec: LeaseSpec, metadata: dict[str, Any]) -> dict[str, Any]:
        told = {name: value for name, value in msgspec.to_builtins(spec).items() if value is not None}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": told}

    def _settle(self, renewed_at: float | None) -> None:
        self._renewed_at = renewed_at
        self._tell((self._view.holder or NOBODY) if renewed_at is None else None)

    def _failed(self, error: Exception) -> None:
        """A renewal that failed changes nothing by itself: `_guard` knows when leading has to end."""
        self.errors += 1
        told = str(error)
        if told != self._trouble:
            self._trouble = told
            log.warning("the lease %s cannot be had or renewed now: %s", self._config.lease, told)

    def _tell(self, leader: str | None) -> None:
        if leader == self._told:
            return
        if leader is None:
            self.terms += 1
            log.info("%s leads", self._view.identity)
        self._told = leader
        self._on_change(leader)

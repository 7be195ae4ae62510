"""Events of the cluster (`kubectl describe` shows them) about workloads that were scaled or left alone."""

from __future__ import annotations

import datetime
import logging
import time
from typing import Literal

from k8s.access import CREATE_EVENT
from k8s.api import ApiClient, ApiError, ApiUnreachableError
from k8s.objects import Bookmark
from k8s.scaling_rules import PoolState

log = logging.getLogger("phaseserve.k8s")

AGAIN_S = 300.0
CALL_S = 5.0
COMPONENT = "phaseserve-router"
MAX_REMEMBERED = 64


class ClusterEvents:
    """Says each thing once in `AGAIN_S`. One that cannot be written is logged; it is in the router's log anyway."""

    def __init__(self, api: ApiClient, identity: str) -> None:
        self._api, self._identity = api, identity
        self._said: dict[str, float] = {}

    async def say(self, pool: PoolState, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """One event on the pool's workload."""
        now = time.monotonic()
        if now < self._said.get(message, -AGAIN_S) + AGAIN_S:
            return
        while len(self._said) >= MAX_REMEMBERED:
            del self._said[next(iter(self._said))]
        self._said[message] = now
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pool.config.workload}-"},
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": pool.config.kind,
                "name": pool.config.workload,
                "namespace": self._api.namespace,
                "uid": pool.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._identity[:128],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._api.call(CREATE_EVENT, Bookmark, body=body, timeout_s=CALL_S)
        except (ApiError, ApiUnreachableError) as error:
            log.warning("cannot write an event about %s: %s", pool.config.workload, error)

"""The links to the replicas that are there to be connected to, while these come and go. No policy.

An address that is not found any more is not connected to anew; a connection that stands is never ended for that: what
runs there goes on, and the replica ends the connection when it leaves (or dies, which the link sees by itself).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterator
from itertools import islice

import zmq
import zmq.asyncio

from router.config import RouterConfig
from router.replica_link import LinkOwner, ReplicaLink

MAX_TOLD = 16
"""Links that the answer to a readiness probe speaks of."""


SOCKETS = 65_536
"""A link takes three of ZMQ's sockets and half a dozen file descriptors; ZMQ allows 1023 sockets by itself."""


def control_context() -> zmq.asyncio.Context:
    """Where the links' sockets live: as many as there may be."""
    context = zmq.asyncio.Context()
    context.set(zmq.MAX_SOCKETS, min(SOCKETS, context.get(zmq.SOCKET_LIMIT)))
    return context


class Links:
    """`run` keeps one link for each address that was found, and for each that is still connected."""

    def __init__(self, config: RouterConfig, context: zmq.asyncio.Context, owner: LinkOwner) -> None:
        self._config, self._context, self._owner = config, context, owner
        self._router_id = f"router-{uuid.uuid4().hex[:12]}"
        self._links: dict[str, ReplicaLink] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wanted: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[ReplicaLink]:
        """In order of address."""
        return iter([self._links[endpoint] for endpoint in sorted(self._links)])

    def found(self, endpoints: Collection[str]) -> None:
        """All addresses that there are now."""
        self._wanted = frozenset(endpoints)
        for endpoint in self._wanted - self._links.keys():
            self._links[endpoint] = self._connect(endpoint)
        self._changed.set()

    def missing(self) -> list[str]:
        """Addresses that nobody answers at, each with its reason; not all of very many."""
        waiting = (link for link in self if link.replica_id is None)
        return [f"{link.endpoint}: {link.why_not}" for link in islice(waiting, MAX_TOLD)]

    def is_wanted(self, link: ReplicaLink) -> bool:
        """Whether its address is still found."""
        return link.endpoint in self._wanted

    def lost(self) -> None:
        """A connection ended: if nobody finds its address any more, it was the last one to it."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for endpoint, link in list(self._links.items()):
                    if endpoint not in self._wanted and link.replica_id is None:
                        if endpoint in self._running:  # else it went before it was connected to
                            self._running.pop(endpoint).cancel()
                        del self._links[endpoint]
                    elif endpoint not in self._running:
                        self._running[endpoint] = group.create_task(link.run())
                await self._changed.wait()

    def _connect(self, endpoint: str) -> ReplicaLink:
        return ReplicaLink(
            endpoint,
            router_id=self._router_id,
            context=self._context,
            owner=self._owner,
            heartbeat_s=self._config.heartbeat_s,
            silence_s=self._config.silence_s,
            control_secret=self._config.control_secret,
        )

"""Who talks to this replica, and whose request is whose.

Two routers may use the same request id, so the core sees ids of our own: `<request id>#<serial>`, never used twice.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from contracts.handoff import Peer
from contracts.prefixes import PrefixChange


@dataclass(slots=True, eq=False)
class RouterSession:
    """One router behind one connection. `requests` maps its request ids to the core's.

    `acked_submit_index` is the highest submit index received from it: each router counts its own submissions.
    `peers` are the replicas it lets this one send KV to. `prefixes_unsaid` is what it has not been told of the prefix
    cache yet, None while that is all of it. `lease_until` is when the prefill lease that it gave last ends.
    """

    router_id: str
    identity: bytes
    heard_s: float
    acked_submit_index: int = 0
    requests: dict[str, str] = field(default_factory=dict)
    lease_until: float = 0.0
    peers: tuple[Peer, ...] = ()
    prefixes_unsaid: deque[PrefixChange] | None = None


class Sessions:
    """All sessions, by connection, and the owner of every live request."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_identity: dict[bytes, RouterSession] = {}
        self._owners: dict[str, tuple[RouterSession, str]] = {}
        self._serial = itertools.count(1)

    @property
    def full(self) -> bool:
        """No further router may join."""
        return len(self._by_identity) >= self._limit

    def all(self) -> list[RouterSession]:
        """Every open session."""
        return list(self._by_identity.values())

    def at(self, identity: bytes) -> RouterSession | None:
        """The session of a connection."""
        return self._by_identity.get(identity)

    def of_router(self, router_id: str) -> list[RouterSession]:
        """The sessions of a router: two for the moment in which a new connection replaces an old one."""
        return [session for session in self._by_identity.values() if session.router_id == router_id]

    def open(self, identity: bytes, router_id: str, now: float) -> RouterSession:
        """A new session. The connection must not have one."""
        assert identity not in self._by_identity
        session = RouterSession(router_id, identity, now)
        self._by_identity[identity] = session
        return session

    def close(self, session: RouterSession) -> list[str]:
        """Forget a session (idempotent). Returns the core's ids of the requests it still had."""
        if self._by_identity.get(session.identity) is session:
            del self._by_identity[session.identity]
        left = list(session.requests.values())
        for core_id in left:
            self.release(core_id)
        return left

    def leased(self, session: RouterSession, duration_s: float, now: float) -> float:
        """A router leases prefill for `duration_s`, or with 0 takes its lease back. Returns how long this replica may
        prefill now: a router speaks for its own prompts, so what another one granted goes on."""
        session.lease_until = now + duration_s
        others = (other.lease_until - now for other in self._by_identity.values() if other is not session)
        return max(duration_s, max(others, default=0.0))

    def claim(self, session: RouterSession, request_id: str) -> str:
        """The core's id for a new request of `session`, which must not have it already."""
        assert request_id not in session.requests
        core_id = f"{request_id}#{next(self._serial)}"
        session.requests[request_id] = core_id
        self._owners[core_id] = (session, request_id)
        return core_id

    def owner(self, core_id: str) -> tuple[RouterSession, str] | None:
        """Whose request this is, with the router's own id for it; None once nobody waits for it."""
        return self._owners.get(core_id)

    def release(self, core_id: str) -> None:
        """The request ended (idempotent)."""
        owner = self._owners.pop(core_id, None)
        if owner is not None:
            del owner[0].requests[owner[1]]

    def silent(self, now: float, limit_s: float) -> list[RouterSession]:
        """Sessions not heard of for `limit_s`."""
        return [session for session in self._by_identity.values() if now - session.heard_s > limit_s]

    @property
    def num_requests(self) -> int:
        """Live requests of all sessions."""
        return len(self._owners)

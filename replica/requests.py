"""What routers say to this replica, and what becomes of it: sessions, requests, cancels, leases, peers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from contracts import wire
from contracts.errors import ErrorInfo, Unavailable
from contracts.handoff import PrefillLeg
from contracts.phase import Role
from contracts.replica_io import ClientGone, LeaseGranted, LeaseRevoked, RoleAssigned
from contracts.request import Request
from contracts.views import ReplicaIdentity, ReplicaView
from replica.handoffs import Handoffs
from replica.intake import wrong_leg, wrong_request
from replica.performer import Performer
from replica.routers import Routers
from replica.sessions import RouterSession
from replica.shutdown import Shutdown

log = logging.getLogger("phaseserve.replica")


class Requests:
    """Takes the messages of all routers, one at a time. Used on the event loop only.

    `refuses` says why nothing new is accepted now, or None.
    """

    def __init__(
        self,
        identity: ReplicaIdentity,
        performer: Performer,
        routers: Routers,
        handoffs: Handoffs | None,
        shutdown: Shutdown,
        view: Callable[[], ReplicaView],
        refuses: Callable[[], Unavailable | None],
    ) -> None:
        self._identity = identity
        self._performer = performer
        self._routers = routers
        self._handoffs = handoffs
        self._shutdown = shutdown
        self._view = view
        self._refuses = refuses

    def on_message(self, identity: bytes, message: wire.RouterMessage) -> None:
        """One message of the connection `identity`."""
        if isinstance(message, wire.Hello):
            self._on_hello(identity, message)
            return
        session = self._routers.sessions.at(identity)
        if session is None:
            self._routers.answer_stranger(identity, message)
            return
        session.heard_s = time.monotonic()
        match message:
            case wire.Submit(requests=requests):
                error = self._submit(session, requests)
                if error is not None:
                    for request in requests:
                        self._routers.send(session, wire.Refused(request_id=request.request_id, error=error))
            case wire.Cancel(request_ids=request_ids):
                for request_id in request_ids:
                    if (core_id := session.requests.get(request_id)) is not None:
                        self._performer.feed(ClientGone(core_id))
            case wire.Lease(duration_s=duration_s):
                left_s = self._routers.sessions.leased(session, duration_s, session.heard_s)
                self._performer.feed(LeaseGranted(left_s) if left_s > 0 else LeaseRevoked())
            case wire.Drain():
                self._shutdown.drain(f"router {session.router_id} asked for it")
            case wire.Assign(role=role):
                self._assign(session, role)
            case wire.Peers(peers=peers):
                session.peers = peers
                self._set_peers()
            case wire.Ping():
                pass

    def _on_hello(self, identity: bytes, hello: wire.Hello) -> None:
        session = self._routers.join(identity, hello, time.monotonic())
        if session is not None:
            self._routers.welcome(session, self._identity, self._view())
            self._routers.end_earlier(session)

    def _submit(self, session: RouterSession, requests: tuple[Request, ...]) -> ErrorInfo | None:
        """All sequences are accepted together (None), or none of them (why)."""
        session.acked_submit_index = max(session.acked_submit_index, *(request.submit_index for request in requests), 0)
        wrong = (
            wrong_request(requests, session.requests, self._identity.model.vocab_size)
            or wrong_leg(requests, self._identity.replica_id, self._handoffs)
            or self._refuses()
        )
        if wrong is not None:
            return wrong.info()
        accepted: list[str] = []
        for request in requests:
            core_id = self._routers.sessions.claim(session, request.request_id)
            refusal = self._offer(msgspec.structs.replace(request, request_id=core_id))
            if refusal is not None:
                for claimed in (*accepted, core_id):
                    self._routers.sessions.release(claimed)
                for earlier in accepted:
                    self._performer.feed(ClientGone(earlier))
                return refusal
            accepted.append(core_id)
        return None

    def _offer(self, request: Request) -> ErrorInfo | None:
        handoffs = self._handoffs
        if handoffs is not None and isinstance(request.leg, PrefillLeg):
            handoffs.accepted(request.request_id, request.leg.ticket)
        refusal = self._performer.offer(request)
        if handoffs is not None and refusal is not None:
            handoffs.ended(request.request_id)
        return refusal

    def _assign(self, session: RouterSession, role: Role) -> None:
        """Another role, and the view that says so at once: until then the router gives nothing to this replica."""
        view = self._view()
        if view.role is not role:
            if role in (Role.PREFILL, Role.DECODE) and self._handoffs is None:
                log.warning("router %s wants the role %s, but this replica has no data plane", session.router_id, role)
                return
            log.info("role %s instead of %s, as router %s says", role, view.role, session.router_id)
            self._performer.feed(RoleAssigned(role))
            view = self._view()
        self._routers.broadcast(view)

    def _set_peers(self) -> None:
        """Every router names those that it knows; KV may be sent to all of them."""
        if self._handoffs is not None:
            named = {peer.replica_id: peer for session in self._routers.sessions.all() for peer in session.peers}
            named.pop(self._identity.replica_id, None)
            self._handoffs.set_peers(tuple(named.values()))

"""What this replica tells its routers. Nothing here waits: a router that is gone or does not read is given up.

The requests of a router that was given up are left in `abandoned`; the loop takes them from there and cancels them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from contracts import wire
from contracts.errors import ErrorInfo, ProtocolError, Unavailable
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from contracts.views import ReplicaIdentity, ReplicaView
from replica.channel import Delivery, RouterChannel
from replica.sessions import RouterSession, Sessions

log = logging.getLogger("phaseserve.replica")


@dataclass(slots=True)
class RouterCounters:
    """Why routers were given up, and messages that nobody should have sent."""

    silent: int = 0
    not_reading: int = 0
    gone: int = 0
    replaced: int = 0
    bad_messages: int = 0
    strangers: int = 0


class Routers:
    """The sessions of all routers and the way to them."""

    def __init__(self, channel: RouterChannel, max_routers: int) -> None:
        self.channel = channel
        self.sessions = Sessions(max_routers)
        self.counters = RouterCounters()
        self.abandoned: list[str] = []

    def join(self, identity: bytes, hello: wire.Hello, now: float) -> RouterSession | None:
        """The session of a router that says hello, new or not; None when it may not join (it was told why)."""
        if hello.protocol != wire.PROTOCOL_VERSION:
            self.goodbye(identity, f"protocol {hello.protocol} is not spoken here, only {wire.PROTOCOL_VERSION}")
            return None
        session = self.sessions.at(identity)
        if session is not None and session.router_id == hello.router_id:
            session.heard_s = now
            return session
        if session is not None:
            self.give_up(session, f"router {hello.router_id} speaks on its connection")
        if self.sessions.full and not self.sessions.of_router(hello.router_id):
            self.goodbye(identity, "too many routers are here already")
            return None
        log.info("router %s joined", hello.router_id)
        return self.sessions.open(identity, hello.router_id, now)

    def end_earlier(self, session: RouterSession) -> None:
        """A router came back on a new connection. Output may be lost with the old one, and it knows: all of it ends."""
        for earlier in self.sessions.of_router(session.router_id):
            if earlier is not session:
                self.counters.replaced += 1
                self.give_up(earlier, "it came back on a new connection")

    def send(self, session: RouterSession, message: wire.ReplicaMessage) -> None:
        """One message to one router."""
        self._send_frame(session, wire.encode(message))

    def _send_frame(self, session: RouterSession, frame: bytes) -> None:
        match self.channel.send(session.identity, frame):
            case Delivery.QUEUED:
                return
            case Delivery.FULL:
                self.counters.not_reading += 1
                self.give_up(session, "it does not read")
            case Delivery.GONE:
                self.counters.gone += 1
                self.give_up(session, "its connection is gone")

    def send_outputs(self, outputs: Iterable[SequenceOutput]) -> None:
        """What one step produced: one message per router. Outputs nobody waits for are dropped."""
        by_session: dict[RouterSession, list[SequenceOutput]] = {}
        for output in outputs:
            owner = self.sessions.owner(output.request_id)
            if owner is None:
                continue
            session, request_id = owner
            by_session.setdefault(session, []).append(msgspec.structs.replace(output, request_id=request_id))
            if output.finish is not None:
                self.sessions.release(output.request_id)
        for session, own in by_session.items():
            self.send(session, wire.Outputs(outputs=tuple(own)))

    def refuse(self, core_id: str, error: ErrorInfo) -> None:
        """The core refused a request."""
        owner = self.sessions.owner(core_id)
        if owner is not None:
            self.sessions.release(core_id)
            self.send(owner[0], wire.Refused(request_id=owner[1], error=error))

    def welcome(self, session: RouterSession, identity: ReplicaIdentity, view: ReplicaView) -> None:
        """The answer to a hello."""
        self.send(session, wire.Welcome(identity=identity, view=_view_for(session, view)))

    def broadcast(self, view: ReplicaView) -> None:
        """A heartbeat to every router."""
        for session in self.sessions.all():
            self.send(session, wire.Heartbeat(view=_view_for(session, view)))

    def give_up(self, session: RouterSession, why: str) -> None:
        """Forget a session; its requests become `abandoned`. Idempotent."""
        left = self.sessions.close(session)
        self.abandoned.extend(left)
        log.info("router %s given up: %s (%d requests)", session.router_id, why, len(left))

    def count_bad_message(self, error: ProtocolError) -> None:
        """A message that did not decode was dropped. Logged at counts 1, 2, 4, 8 and so on: a flood fills no disk."""
        self.counters.bad_messages += 1
        if self.counters.bad_messages.bit_count() == 1:
            log.warning("message dropped, the %d. of its kind: %s", self.counters.bad_messages, error)

    def answer_stranger(self, identity: bytes, message: wire.RouterMessage) -> None:
        """Somebody without a session (never said hello, or was given up) is told so, and nothing else."""
        self.counters.strangers += 1
        if isinstance(message, wire.Submit):
            error = Unavailable("no session with this replica: say hello first").info()
            for request in message.requests:
                frame = wire.encode(wire.Refused(request_id=request.request_id, error=error))
                self.channel.send(identity, frame)
        self.goodbye(identity, "no session with this replica: say hello")

    def goodbye(self, identity: bytes, reason: str) -> None:
        """The last message on a connection; best effort."""
        self.channel.send(identity, wire.encode(wire.Goodbye(reason=reason)))

    def leave(self, reason: str) -> None:
        """This replica ends: unfinished requests fail by name, every router gets its goodbye."""
        error = Unavailable(f"replica ended: {reason}").info()
        for session in self.sessions.all():
            failed = [
                SequenceOutput(request_id=request_id, finish=FinishReason.ERROR, error=error)
                for request_id in session.requests
            ]
            if failed:
                self.send(session, wire.Outputs(outputs=tuple(failed)))
            self.goodbye(session.identity, reason)
            self.give_up(session, reason)


def _view_for(session: RouterSession, view: ReplicaView) -> ReplicaView:
    """The view as one router needs it: with its own submissions acknowledged, not another's."""
    return msgspec.structs.replace(view, acked_submit_index=session.acked_submit_index)

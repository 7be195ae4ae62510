"""One router's end of the control connection to one replica: handshake, heartbeats, its end, reconnection. No policy.

Everything that is learnt goes to a `LinkOwner`. A connection that breaks is replaced by a new one, for ever; what was
under way on the old one is the owner's to wind up when it is told of the loss. A replica whose process died is lost
the moment its host closes the connection; one that is frozen, or whose host or network is gone, once it is silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol, cast

import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from contracts import wire
from contracts.control_secret import CONTROL_SECRET_VARIABLE, ControlEnd, key_seed
from contracts.errors import ErrorInfo, ProtocolError
from contracts.handoff import KVTicket
from contracts.prefixes import PrefixChange
from contracts.replica_io import SequenceOutput
from contracts.views import ReplicaView

log = logging.getLogger("phaseserve.router")

QUEUED_MESSAGES = 8192
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
HELLO_S = 0.05
REFUSED_RETRY_S = 5.0
HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class LinkOwner(Protocol):
    """Who is told. All calls are made on the event loop and must not block."""

    def joined(self, link: ReplicaLink, welcome: wire.Welcome) -> str | None:
        """The replica answered. Returns why it is not wanted, or None."""
        ...

    def reported(self, link: ReplicaLink, view: ReplicaView) -> None:
        """A heartbeat."""
        ...

    def produced(self, link: ReplicaLink, outputs: tuple[SequenceOutput, ...]) -> None:
        """New tokens."""
        ...

    def refused(self, link: ReplicaLink, sequence_id: str, error: ErrorInfo) -> None:
        """A sequence was not accepted."""
        ...

    def reserved(self, link: ReplicaLink, sequence_id: str, ticket: KVTicket) -> None:
        """The decode leg of a sequence waits for its KV."""
        ...

    def cached(self, link: ReplicaLink, change: PrefixChange) -> None:
        """What its prefix cache holds is different now."""
        ...

    def lost(self, link: ReplicaLink, reason: str) -> None:
        """The connection of a joined replica is over."""
        ...

    def malformed(self, link: ReplicaLink) -> None:
        """A message did not decode."""
        ...


class LinkDownError(Exception):
    """Internal: ends one connection, with the reason; `run` opens the next after `retry_s`."""

    def __init__(self, reason: str, retry_s: float) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


class ReplicaLink:
    """`run` serves until cancelled. `replica_id` and `incarnation` are known while the replica is joined."""

    def __init__(
        self,
        endpoint: str,
        *,
        router_id: str,
        context: zmq.asyncio.Context,
        owner: LinkOwner,
        heartbeat_s: float,
        silence_s: float,
        control_secret: str = "",
    ) -> None:
        self.endpoint = endpoint
        self.replica_id: str | None = None
        self.why_not = "not connected yet"
        self._router_id = router_id
        self._context = context
        self._owner = owner
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._control_secret = control_secret
        self._socket: zmq.asyncio.Socket | None = None
        self._heard_s = 0.0
        self._broken = False
        self._connected = False
        self._receiving: asyncio.Future[bytes] | None = None

    async def run(self) -> None:
        """Connect, serve the connection until it breaks, connect again."""
        while True:
            down = await self._serve_one_connection()
            reason = str(down)
            if self.replica_id is not None:
                log.warning("replica %s at %s is gone: %s", self.replica_id, self.endpoint, reason)
                self._owner.lost(self, reason)
                self.replica_id = None
            elif reason != self.why_not:
                log.warning("replica at %s: %s", self.endpoint, reason)
            self.why_not = reason
            await asyncio.sleep(down.retry_s)

    def send(self, message: wire.RouterMessage) -> bool:
        """Queue one message now. False: the connection is broken, which the owner will be told of shortly."""
        if self._socket is None or not self._connected:
            return False
        sending = self._socket.send(wire.encode(message), flags=zmq.DONTWAIT)
        error = cast("asyncio.Future[object]", sending).exception()  # done already, because of DONTWAIT
        if error is None:
            return True
        if not isinstance(error, zmq.Again):
            raise error
        self._broken = self.replica_id is not None
        return False

    async def _serve_one_connection(self) -> LinkDownError:
        try:
            socket, monitor = self._open()
        except LinkDownError as refused:
            return refused
        down = LinkDownError("closed", self._heartbeat_s)
        try:
            self._connect(socket)
            self._socket = socket
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(socket))
                group.create_task(self._beat())
                group.create_task(self._watch(socket, monitor))
        except* LinkDownError as downs:
            first = downs.exceptions[0]
            assert isinstance(first, LinkDownError)  # the group is flat: no task has a group of its own
            down = first
        finally:
            self._socket = None
            socket.disable_monitor()
            monitor.close()
            socket.close()
        return down

    def _open(self) -> tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]:
        """The connection's socket, and the one that tells of its state. Raises `LinkDownError` where too many are open:
        the other links, and all streams, go on.

        Not with ZMQ's option IMMEDIATE: it would drop what came just before the end, a draining replica's last words
        among it. `send` looks at `_connected` instead, so that nothing is queued for a connection to come.
        """
        try:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
            socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.IPV6, int("[" in self.endpoint))
            if self._control_secret:
                _prove(socket, self._control_secret)
            self._broken = self._connected = False
            watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
            return socket, socket.get_monitor_socket(watched)
        except zmq.ZMQError as error:
            raise LinkDownError(f"cannot open a connection: {error}", REFUSED_RETRY_S) from error

    def _connect(self, socket: zmq.asyncio.Socket) -> None:
        try:
            socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            raise LinkDownError(f"cannot connect: {error}", REFUSED_RETRY_S) from error

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            await asyncio.sleep(0)  # a flood of messages must not keep the streams waiting
            self._receiving = cast("asyncio.Future[bytes]", socket.recv())
            frame = await self._receiving
            self._heard_s = time.monotonic()
            try:
                message = wire.decode_replica_message(frame)
            except ProtocolError as error:
                log.warning("dropped a message from %s: %s", self.endpoint, error)
                self._owner.malformed(self)
                continue
            self._take(message)

    async def _watch(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """Ends a joined connection that the other side closed, after everything that came before its end was taken in.

        ZMQ connects anew by itself, but what comes back would be another process, or one that gave up our requests.
        """
        while True:
            event = await recv_monitor_message(monitor)
            is_turned_away = (
                bool(self._control_secret) and not self._connected and event["event"] == zmq.EVENT_DISCONNECTED
            )
            if is_turned_away or event["event"] & HANDSHAKE_FAILED:
                reason = f"the handshake failed: router and replica have different {CONTROL_SECRET_VARIABLE}"
                raise LinkDownError(reason, REFUSED_RETRY_S)
            self._connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self._connected:
                continue
            while not self._has_taken_all(socket):  # noqa: ASYNC110  (bounded by what came, set by no event)
                await asyncio.sleep(0)
            if self.replica_id is not None:
                raise LinkDownError("it closed the connection", self._heartbeat_s)

    def _has_taken_all(self, socket: zmq.asyncio.Socket) -> bool:
        waits = self._receiving is not None and not self._receiving.done()
        return waits and not cast("int", socket.get(zmq.EVENTS)) & zmq.POLLIN

    def _take(self, message: wire.ReplicaMessage) -> None:
        match message:
            case wire.Outputs(outputs=outputs) if self.replica_id is not None:
                self._owner.produced(self, outputs)
            case wire.Heartbeat(view=view) if self.replica_id is not None:
                self._owner.reported(self, view)
            case wire.Refused(request_id=sequence_id, error=error) if self.replica_id is not None:
                self._owner.refused(self, sequence_id, error)
            case wire.Reserved(request_id=sequence_id, ticket=ticket) if self.replica_id is not None:
                self._owner.reserved(self, sequence_id, ticket)
            case wire.Prefixes(change=change) if self.replica_id is not None:
                self._owner.cached(self, change)
            case wire.Welcome():
                self._welcome(message)
            case wire.Goodbye(reason=reason):
                raise LinkDownError(f"it said goodbye: {reason}", self._heartbeat_s)
            case _:
                log.warning("%s spoke before its welcome", self.endpoint)

    def _welcome(self, welcome: wire.Welcome) -> None:
        if self.replica_id is not None:  # the answer to a Hello that was repeated while the first was under way
            self._owner.reported(self, welcome.view)
            return
        refusal = self._owner.joined(self, welcome)
        if refusal is not None:
            raise LinkDownError(f"refused: {refusal}", REFUSED_RETRY_S)

    async def _beat(self) -> None:
        """Hello until there is a welcome, then a ping each heartbeat; ends a silent or broken connection."""
        nonce = 0
        while True:
            period_s = min(HELLO_S, self._heartbeat_s) if self.replica_id is None else self._heartbeat_s
            began_s = time.monotonic()
            if self.replica_id is None:
                self.send(wire.Hello(router_id=self._router_id))
            else:
                nonce += 1
                self.send(wire.Ping(nonce=nonce))
            await asyncio.sleep(period_s)
            now = time.monotonic()
            if now - began_s > period_s + self._silence_s / 2:
                self._heard_s = now  # it was this process that stood still: its messages are still to be read
            if self._broken:
                raise LinkDownError("the connection broke", self._heartbeat_s)
            if self.replica_id is not None and now - self._heard_s > self._silence_s:
                raise LinkDownError(f"silent for {self._silence_s:g} s", self._heartbeat_s)


def _prove(socket: zmq.asyncio.Socket, control_secret: str) -> None:
    """CURVE: this end holds the routers' key, and speaks to who holds the replicas'."""
    own = key_seed(control_secret, ControlEnd.ROUTER)
    socket.setsockopt(zmq.CURVE_SECRETKEY, own)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, z85.decode(zmq.curve_public(z85.encode(own))))
    theirs = zmq.curve_public(z85.encode(key_seed(control_secret, ControlEnd.REPLICA)))
    socket.setsockopt(zmq.CURVE_SERVERKEY, z85.decode(theirs))

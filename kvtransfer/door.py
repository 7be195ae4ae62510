"""Where senders of KV come in: the control port of a receiver, and the sessions behind it.

Whoever connects has to prove that it knows the fleet's secret before anything else is read or said. One session per
sending replica: a new one replaces the old, whatever its incarnation, and nothing of the old one is kept.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from contracts.errors import ProtocolError
from kvtransfer.auth import Handshake, Role
from kvtransfer.channel import Channel, open_channel
from kvtransfer.counters import TransferCounters
from kvtransfer.intake import Intake
from kvtransfer.probe import ProbeReceipt, scratch_spans
from kvtransfer.protocol import SLOT_ID_BYTES, TransferError
from kvtransfer.rate import RateMeter
from kvtransfer.recut import fingerprint_difference
from kvtransfer.sockets import format_endpoint, listening
from kvtransfer.wire import Chosen, Identity, Message, Offer, ProbeBegin, Ready, encode

MAX_STRANGERS = 64


@dataclass(slots=True, eq=False)
class Guest:
    """A sender's session at this receiver. `scheme` is empty until the sender has chosen a transport."""

    channel: Channel
    scratch_slot: bytes
    receipt: ProbeReceipt
    scheme: str = ""
    device: str = ""
    meter: RateMeter = field(default_factory=RateMeter)
    bytes_per_s: float = 0.0
    landed_at: float = 0.0

    @property
    def replica_id(self) -> str:
        """Who it is."""
        return self.channel.peer.replica_id


class Door:
    """Accepts senders. `on_message(guest, message)` gets what is about tickets, `on_gone(guest, reason)` each end."""

    def __init__(
        self,
        intake: Intake,
        identity: Identity,
        key: bytes,
        counters: TransferCounters,
        *,
        handshake_s: float,
        silence_s: float,
        on_message: Callable[[Guest, Message], None],
        on_gone: Callable[[Guest, str], None],
    ) -> None:
        self.guests: dict[str, Guest] = {}
        self._counters = counters
        self._intake = intake
        self._identity = identity
        self._key = key
        self._handshake_s = handshake_s
        self._silence_s = silence_s
        self._on_message = on_message
        self._on_gone = on_gone
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_scratch: dict[bytes, Guest] = {}
        self._closing = False
        self._num_sessions = 0
        self._num_strangers = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> str:
        """Listen; returns the endpoint. Raises `TransferError`."""
        sock = listening(host, port)
        bound_s = self._handshake_s if tls is not None else None
        self._server = await asyncio.start_server(self._connected, sock=sock, ssl=tls, ssl_handshake_timeout=bound_s)
        return format_endpoint("tcp", host, sock.getsockname()[1])

    async def close(self, reason: str) -> None:
        """Nobody comes in any more, and everybody is sent away."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for guest in list(self.guests.values()):
            guest.channel.close(reason)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def on_scratch(self, slot_id: bytes, offset: int, length: int, note: bytes) -> None:
        """A self-test or a piece of a probe landed."""
        guest = self._by_scratch.get(slot_id)
        if guest is not None:
            guest.channel.touch()
            now = asyncio.get_running_loop().time()
            result = guest.receipt.landed(now, offset, length, note, self._intake.scratch)
            if result is not None:
                guest.channel.send(result)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._accept(reader, writer))
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            # Here and not in the task, which never runs when it is cancelled as soon as it was made.
            self._tasks.discard(task)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await self._authenticated(reader, writer)
        if channel is not None:
            await self._serve(channel)

    async def _authenticated(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        if self._num_strangers >= MAX_STRANGERS:
            self._counters.refused_connections += 1
            return None
        self._num_strangers += 1
        handshake = Handshake(Role.RESPONDER, self._key, encode(self._identity))
        try:
            async with asyncio.timeout(self._handshake_s):
                return await open_channel(reader, writer, handshake, self._silence_s)
        except (TransferError, ProtocolError, TimeoutError):
            self._counters.refused_connections += 1
            return None
        finally:
            self._num_strangers -= 1

    async def _serve(self, channel: Channel) -> None:
        difference = fingerprint_difference(self._identity.fingerprint, channel.peer.fingerprint)
        if difference is not None:
            self._counters.refused_connections += 1
            channel.close(f"{self._identity.replica_id}: {difference}")
            with suppress(TransferError, ProtocolError, TimeoutError):
                async with asyncio.timeout(1.0):  # the other side hangs up when it has read why
                    while True:
                        await channel.receive()
            await channel.drop()
            return
        guest = self._enter(channel)
        reason = "ended"
        try:
            channel.send(Offer(bulk=self._intake.offers(), scratch_slot=guest.scratch_slot))
            reason = await channel.run(lambda message: self._dispatch(guest, message))
        finally:
            del self._by_scratch[guest.scratch_slot]
            if self.guests.get(guest.replica_id) is guest:
                del self.guests[guest.replica_id]
            self._on_gone(guest, reason)
            await self._intake.drop_session(channel.bulk_token, guest.scratch_slot)

    def _enter(self, channel: Channel) -> Guest:
        old = self.guests.get(channel.peer.replica_id)
        if old is not None:
            old.channel.close("a new session of the same replica replaces this one")
            self._on_gone(old, f"a new session of {old.replica_id} replaced it")
        self._num_sessions += 1
        spans = scratch_spans(self._num_sessions)
        guest = Guest(channel, secrets.token_bytes(SLOT_ID_BYTES), ProbeReceipt(spans))
        self.guests[guest.replica_id] = guest
        self._by_scratch[guest.scratch_slot] = guest
        self._intake.add_session(channel.bulk_token, guest.scratch_slot, spans)
        return guest

    def _dispatch(self, guest: Guest, message: Message) -> None:
        if isinstance(message, Chosen):
            if not message.refused and self._intake.offered(message.scheme) and not guest.scheme:
                guest.scheme, guest.device = message.scheme, message.device
                guest.channel.send(Ready())
        elif isinstance(message, ProbeBegin):
            result = guest.receipt.begin(message, self._intake.scratch)
            if result is not None:
                guest.channel.send(result)
        else:
            self._on_message(guest, message)

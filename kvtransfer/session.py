"""The sending side's session with one receiver: dial, prove, compare, choose a transport, test it, warm it up.

Nothing is sent over a session before a put has crossed its transport and came back confirmed, so that the first real
transfer meets no surprise. Peer and transport of a session never change. A bulk connection that breaks is replaced by
one of the same transport; when the control connection breaks, everything about it goes, and a new session is made.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from contracts.errors import ProtocolError
from contracts.handoff import Peer
from kvtransfer.auth import Handshake, Role
from kvtransfer.channel import Channel, open_channel
from kvtransfer.choose import refusal
from kvtransfer.probe import TEST_BYTES, Prober, first_piece
from kvtransfer.protocol import BulkSender, TransferError, Transport
from kvtransfer.recut import fingerprint_difference
from kvtransfer.roster import Roster
from kvtransfer.sockets import parse_endpoint
from kvtransfer.wire import BulkOffer, Chosen, Identity, Message, Offer, ProbeResult, Ready, encode

_T = TypeVar("_T")
WARM_UP_BYTES = 256 << 10
WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class Dialling:
    """What every session of this process is made with. `pattern`: bytes to test and probe with."""

    identity: Identity
    key: bytes
    roster: Roster
    memory: memoryview
    pattern: memoryview
    tls: ssl.SSLContext | None
    deadline_s: float
    silence_s: float


class Session:
    """A tested link to one receiver. Made by `open_session`."""

    def __init__(self, dialling: Dialling, channel: Channel) -> None:
        loop = asyncio.get_running_loop()
        self.channel = channel
        self.peer = channel.peer
        self.scheme = ""
        self.device = ""
        self.latency_s = 0.0
        self.bytes_per_s = 0.0
        self._dialling = dialling
        self._offer: asyncio.Future[Offer] = loop.create_future()
        self._ready: asyncio.Future[Ready] = loop.create_future()
        self._bulk: BulkSender | None = None
        self._scratch: BulkSender | None = None
        self._prober: Prober | None = None
        self._transport: Transport | None = None
        self._settled: BulkOffer | None = None
        self._on_message: Callable[[Session, Message], None] | None = None
        self._task = asyncio.create_task(channel.run(self._dispatch))

    @property
    def bulk(self) -> BulkSender:
        """Puts into the peer's pool."""
        assert self._bulk is not None
        return self._bulk

    @property
    def prober(self) -> Prober:
        """Puts into the peer's scratch memory."""
        assert self._prober is not None
        return self._prober

    @property
    def ended(self) -> bool:
        """Whether the control connection is gone."""
        return self._task.done()

    async def until_ended(self, on_message: Callable[[Session, Message], None]) -> str:
        """Deliver messages until the session ends; returns why. Cancelling leaves it running."""
        self._on_message = on_message
        return await asyncio.shield(self._task)

    def end(self, reason: str) -> None:
        """End it; `until_ended` returns shortly after."""
        self.channel.close(reason)

    async def close(self) -> None:
        """Free everything. Idempotent."""
        if not self._task.done():
            self.channel.close("the sender is done")
            _, late = await asyncio.wait({self._task}, timeout=1.0)
            for task in late:
                task.cancel()
        await _close_all(self._bulk, self._scratch)
        with suppress(asyncio.CancelledError):
            await self._task

    async def renew_bulk(self) -> None:
        """Replace the connection into the pool, after a put on it failed. Raises `TransferError`."""
        assert self._transport is not None
        assert self._settled is not None
        old = self.bulk
        self._bulk = await self._connect(self._transport, self._settled.endpoint, self._dialling.memory)
        await old.close()

    async def renew_scratch(self) -> None:
        """Replace the connection into scratch memory, after a probe failed. Raises `TransferError`."""
        assert self._transport is not None
        assert self._settled is not None
        old, pattern = self._scratch, self._dialling.pattern
        self._scratch = await self._connect(self._transport, self._settled.scratch_endpoint, pattern)
        self._prober = Prober(self.channel, self._scratch, (await self._answer(self._offer)).scratch_slot, pattern)
        if old is not None:
            await old.close()

    async def settle(self) -> None:
        """Find the transport. Raises `TransferError` when none comes up, naming each."""
        offer = await self._answer(self._offer)
        sizes = (self._dialling.identity.fingerprint.layout.block_size, self.peer.fingerprint.layout.block_size)
        candidates, passed_over = self._dialling.roster.candidates(offer.bulk, sizes)
        failures = []
        for bulk, transport in candidates:
            try:
                async with asyncio.timeout(self._dialling.deadline_s):
                    await self._try(bulk, transport, offer.scratch_slot)
            except TimeoutError:
                failures.append(f"{bulk.scheme}: no self-test within {self._dialling.deadline_s:g} s")
            except TransferError as error:
                failures.append(f"{bulk.scheme}: {error}")
            else:
                self.channel.send(Chosen(scheme=self.scheme, device=self.device))
                await self._answer(self._ready)
                return
        reason = "; ".join([*failures, passed_over]) or "no transport in common"
        self.channel.send(Chosen(scheme="", device="", refused=reason))
        raise TransferError(reason)

    async def _try(self, offer: BulkOffer, transport: Transport, scratch_slot: bytes) -> None:
        bulk = scratch = None
        pattern = self._dialling.pattern
        try:
            scratch = await self._connect(transport, offer.scratch_endpoint, pattern)
            self._prober = Prober(self.channel, scratch, scratch_slot, pattern)
            await self._prober.self_test()
            bulk = await self._connect(transport, offer.endpoint, self._dialling.memory)
            refused = refusal(self._dialling.roster.config, offer.scheme, bulk.device)
            if refused is not None:
                raise TransferError(refused)
            self.latency_s = await self._prober.self_test()
            await self._warm_up(self._prober)
        except BaseException:
            self._prober = None
            await to_the_end(_close_all(bulk, scratch))
            raise
        self._bulk, self._scratch = bulk, scratch
        self._transport, self._settled = transport, offer
        self.scheme, self.device = transport.scheme, bulk.device

    async def _warm_up(self, prober: Prober) -> None:
        guess = TEST_BYTES / max(self.latency_s, 1e-6)
        num_bytes = min(WARM_UP_BYTES, int(guess * WARM_UP_S))
        result = await prober.once(num_bytes, first_piece(guess), lambda: False)
        if result is not None and result.tail_s > 0.0:
            self.bytes_per_s = result.tail_bytes / result.tail_s

    async def _connect(self, transport: Transport, endpoint: str, memory: memoryview) -> BulkSender:
        return await transport.connect(endpoint, self.channel.bulk_token, memory, self._dialling.deadline_s)

    async def _answer(self, future: asyncio.Future[_T]) -> _T:
        deadline_s = self._dialling.deadline_s
        either: set[asyncio.Future[Any]] = {future, self._task}
        await asyncio.wait(either, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if self._task.done():
            raise TransferError(self._task.result())
        raise TransferError(f"no answer within {deadline_s:g} s")

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, ProbeResult):
            if self._prober is not None:
                self._prober.on_result(message)
        elif isinstance(message, Offer):
            if not self._offer.done():
                self._offer.set_result(message)
        elif isinstance(message, Ready):
            if not self._ready.done():
                self._ready.set_result(message)
        elif self._on_message is not None:
            self._on_message(self, message)


async def open_session(dialling: Dialling, peer: Peer) -> Session:
    """A tested session with `peer`. Raises `TransferError` or `ProtocolError` saying why there is none."""
    failures = []
    for endpoint in peer.endpoints:
        try:
            channel = await _dial(dialling, endpoint)
            break
        except TimeoutError:
            failures.append(f"{endpoint} did not answer within {dialling.deadline_s:g} s")
        except OSError as error:
            failures.append(f"cannot connect to {endpoint}: {str(error) or type(error).__name__}")
    else:
        raise TransferError("; ".join(failures) or "the peer has no data endpoint")
    session = Session(dialling, channel)
    try:
        _check(dialling.identity, channel.peer, peer)
        await session.settle()
    except BaseException:
        await to_the_end(session.close())
        raise
    return session


async def to_the_end(step: Coroutine[Any, Any, None]) -> None:
    """Free something even if the caller is cancelled meanwhile; the cancellation goes on afterwards."""
    task = asyncio.ensure_future(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        raise


async def _close_all(*connections: BulkSender | None) -> None:
    for connection in connections:
        if connection is not None:
            await connection.close()


def _check(mine: Identity, found: Identity, expected: Peer) -> None:
    for name, a, b in (
        ("replica_id", expected.replica_id, found.replica_id),
        ("incarnation", expected.incarnation, found.incarnation),
    ):
        if a != b:
            raise TransferError(f"another process answers there: {name} {a!r} expected, {b!r} found")
    difference = fingerprint_difference(mine.fingerprint, found.fingerprint)
    if difference is not None:
        raise TransferError(difference)


async def _dial(dialling: Dialling, endpoint: str) -> Channel:
    host, port = parse_endpoint(endpoint, "tcp")
    async with asyncio.timeout(dialling.deadline_s):
        server_hostname = "" if dialling.tls is not None else None
        reader, writer = await asyncio.open_connection(host, port, ssl=dialling.tls, server_hostname=server_hostname)
        try:
            handshake = Handshake(Role.INITIATOR, dialling.key, encode(dialling.identity))
            return await open_channel(reader, writer, handshake, dialling.silence_s)
        except (TransferError, ProtocolError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
            raise

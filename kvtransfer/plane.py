"""The data plane of one replica, on its loop: what links, door, sender and receiver have to do with one another."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from contracts.handoff import KVTicket, Peer
from kvtransfer.addresses import faster_than
from kvtransfer.config import TransferConfig
from kvtransfer.counters import TransferCounters
from kvtransfer.door import Door, Guest
from kvtransfer.events import Measured, TransferEvent
from kvtransfer.intake import Intake
from kvtransfer.interfaces import list_interfaces, local_choice
from kvtransfer.links import Links
from kvtransfer.probe import PIECE_BYTES
from kvtransfer.receiver import Receiver
from kvtransfer.roster import make_roster
from kvtransfer.sender import Sender
from kvtransfer.session import Dialling, Session
from kvtransfer.spans import Pool
from kvtransfer.tls import TlsFiles, client_context, server_context
from kvtransfer.wire import Expect, Identity, Message, ticket_name

log = logging.getLogger("phaseserve.kvtransfer")

TICK_S = 0.1
LAST_TURNS = 5
"""Of the loop, in which connections that were just accepted are made, and ended."""


class Plane:
    """Everything of one service that lives on its loop. `sender` and `receiver` do the hand-offs."""

    def __init__(
        self,
        config: TransferConfig,
        key: bytes,
        identity: Identity,
        pool: Pool,
        memory: memoryview,
        on_event: Callable[[TransferEvent], None],
        counters: TransferCounters,
    ) -> None:
        self._config = config
        self._on_event = on_event
        self._warned: set[str] = set()
        self._choice = local_choice(config.host, config.device)
        self._tls = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca) if config.tls else None
        self._roster = make_roster(config)
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoint = ""
        self.description = "not started"
        self.sender = Sender(
            pool,
            memory,
            on_event,
            self._spawn,
            counters,
            chunk_bytes=config.chunk_bytes,
            window=config.window,
            max_tickets=config.max_concurrent_transfers,
            silence_s=config.silence_s,
        )
        self.receiver = Receiver(pool, memory, on_event, self._spawn, counters, silence_s=config.silence_s)
        usable = tuple(self._roster.usable.values())
        self._intake = Intake(usable, memory, self.receiver.on_landed, self._on_scratch)
        self.receiver.attach(self._intake)
        self._door = Door(
            self._intake,
            identity,
            key,
            counters,
            handshake_s=config.connect_deadline_s,
            silence_s=config.silence_s,
            on_message=self._from_sender,
            on_gone=self.receiver.on_gone,
        )
        self._links = Links(
            self._dialling(identity, key, memory),
            self._from_links,
            on_up=self.sender.on_up,
            on_down=self.sender.on_down,
            on_message=self._from_receiver,
            busy=self.sender.busy,
        )

    async def start(self) -> tuple[str, ...]:
        """Listen. Raises `TransferError`; then `close` frees what was opened."""
        for warning in self._choice.warnings:
            log.warning("%s", warning)
        await self._intake.start()
        tls = server_context(self._tls) if self._tls is not None else None
        self._endpoint = await self._door.start(self._choice.address, self._config.port, tls)
        self._describe()
        return (self._endpoint,)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep deadlines until `stop`."""
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            self.sender.tick(loop.time())
            self.receiver.tick(loop.time())
            self._describe()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await stop.wait()

    async def close(self, deadline_s: float) -> None:
        """End all connections and tasks, within the deadline one way or the other."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(deadline_s, 0.5)):
                await self._links.close()
                await self._door.close("this replica ends")
                await self._intake.close()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                for _ in range(LAST_TURNS):
                    await asyncio.sleep(0)

    # --- the owner

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """See `TransferService`."""
        self._links.set_peers(peers)

    def probe(self, peer_id: str, num_bytes: int) -> None:
        """See `TransferService`."""
        self._links.probe(peer_id, num_bytes)

    def reserve(self, ticket: KVTicket, sender_id: str) -> None:
        """See `TransferService`."""
        self.receiver.reserve(ticket, sender_id, self._door.guests.get(sender_id))

    def expected(self, ticket_id: str, expected_s: float) -> None:
        """See `TransferService`. The receiver is not known by the id alone, so every peer is told, by a name that
        says nothing to those who do not hold the ticket."""
        message = Expect(name=ticket_name(ticket_id), expected_s=expected_s)
        for session in self._links.sessions():
            session.channel.send(message)

    def send(self, ticket: KVTicket, blocks: Sequence[int], ready_tokens: int) -> None:
        """See `TransferService`."""
        session = self._links.session(ticket.receiver_id, ticket.receiver_incarnation)
        self.sender.send(ticket, blocks, ready_tokens, session)

    def stop(self, ticket_id: str, reason: str) -> None:
        """See `TransferService`."""
        if ticket_id in self.sender:
            self.sender.stop(ticket_id, reason)
        else:
            self.receiver.stop(ticket_id, reason)

    # --- inside

    def _dialling(self, identity: Identity, key: bytes, memory: memoryview) -> Dialling:
        return Dialling(
            identity=identity,
            key=key,
            roster=self._roster,
            memory=memory,
            pattern=memoryview(bytearray(secrets.token_bytes(PIECE_BYTES))),
            tls=client_context(self._tls) if self._tls is not None else None,
            deadline_s=self._config.connect_deadline_s,
            silence_s=self._config.silence_s,
        )

    def _on_scratch(self, slot_id: bytes, offset: int, length: int, note: bytes) -> None:
        self._door.on_scratch(slot_id, offset, length, note)

    def _from_sender(self, guest: Guest, message: Message) -> None:
        self.receiver.on_message(guest, message)

    def _from_receiver(self, session: Session, message: Message) -> None:
        self.sender.on_message(session, message)

    def _from_links(self, event: TransferEvent) -> None:
        """Pass it on. A probe that finds a link far below what another interface promises is worth a warning, once."""
        self._on_event(event)
        if not isinstance(event, Measured) or not event.probe or event.peer_id in self._warned:
            return
        device = next((s.device for s in self._links.sessions() if s.peer.replica_id == event.peer_id), "lo")
        if device in ("", "lo") or self._config.device or self._config.host:
            return  # not between hosts, or somebody's decision
        faster = faster_than(list_interfaces(), device, event.num_bytes / event.duration_s)
        if faster is not None:
            self._warned.add(event.peer_id)
            log.warning("the link to %s: %s", event.peer_id, faster)

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a hand-off could not be ended properly", exc_info=task.exception())

    def _describe(self) -> None:
        links = "; ".join(
            f"to {session.peer.replica_id} by {session.scheme} over {session.device}, "
            f"{session.bytes_per_s / 1e6:.1f} MB/s, {1e3 * session.latency_s:.2f} ms"
            for session in self._links.sessions()
        )
        left_out = "".join(f"; no {scheme}: {reason}" for scheme, reason in self._roster.left_out.items())
        where = f"{self._endpoint}, {self._choice}; transports {', '.join(self._roster.usable)}"
        self.description = f"{where}{left_out}; links: {links or 'none yet'}"

"""The links of a sender: one per peer that the router named, kept up with growing pauses, measured when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from contracts.errors import ProtocolError
from contracts.handoff import Peer
from kvtransfer.events import Linked, Measured, TransferEvent, Unlinked
from kvtransfer.probe import first_piece
from kvtransfer.protocol import TransferError
from kvtransfer.session import Dialling, Session, open_session, to_the_end
from kvtransfer.wire import Message

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STABLE_S = 10.0
PROBE_BASE_S = 10.0
PROBE_FACTOR = 8.0
MIN_PROBE_BYTES = 128 << 10
JOIN_PROBE_S = 0.1
MAX_PROBE_S = 1.0


class Link:
    """One peer, of one incarnation."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.session: Session | None = None
        self.task: asyncio.Task[None] | None = None
        self.probe: asyncio.Task[None] | None = None
        self.said: str | None = None


class Links:
    """`on_up` and `on_down` come before `Linked` and `Unlinked` are told. `busy`: whether a session has transfers."""

    def __init__(
        self,
        dialling: Dialling,
        emit: Callable[[TransferEvent], None],
        *,
        on_up: Callable[[Session], None],
        on_down: Callable[[Session, str], None],
        on_message: Callable[[Session, Message], None],
        busy: Callable[[Session], bool],
    ) -> None:
        self._dialling = dialling
        self._emit = emit
        self._on_up = on_up
        self._on_down = on_down
        self._on_message = on_message
        self._busy = busy
        self._links: dict[str, Link] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def set_peers(self, peers: Iterable[Peer]) -> None:
        """Connect to these and no others. A peer whose incarnation or address changed is a new peer."""
        wanted = {peer.replica_id: peer for peer in peers}
        for peer_id, link in list(self._links.items()):
            if wanted.get(peer_id) != link.peer:
                del self._links[peer_id]
                self._leave(link)
        for peer_id, peer in wanted.items():
            if peer_id not in self._links:
                link = self._links[peer_id] = Link(peer)
                link.task = asyncio.create_task(self._keep_up(link))

    def session(self, peer_id: str, incarnation: str) -> Session | None:
        """The tested session with exactly this process, if there is one."""
        link = self._links.get(peer_id)
        session = link.session if link is not None else None
        return session if session is not None and session.peer.incarnation == incarnation else None

    def sessions(self) -> list[Session]:
        """All that are up."""
        return [link.session for link in self._links.values() if link.session is not None]

    def probe(self, peer_id: str, num_bytes: int) -> None:
        """Measure a link with about `num_bytes`, unless it is down, busy, or being measured."""
        link = self._links.get(peer_id)
        if link is not None and link.session is not None and link.probe is None and not self._busy(link.session):
            link.probe = asyncio.create_task(self._probe(link, link.session, num_bytes))

    async def close(self) -> None:
        """End all sessions."""
        self.set_peers(())
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _leave(self, link: Link) -> None:
        assert link.task is not None
        link.task.cancel()
        self._leaving.add(link.task)
        link.task.add_done_callback(self._leaving.discard)

    async def _keep_up(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            started = loop.time()
            try:
                session = await open_session(self._dialling, link.peer)
            except (TransferError, ProtocolError) as error:
                self._say_down(link, str(error))
            else:
                await self._use(link, session)
            if loop.time() - started > STABLE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)

    async def _use(self, link: Link, session: Session) -> None:
        reason = "this replica gave the link up"
        link.session, link.said = session, None
        self._on_up(session)
        peer = link.peer
        self._emit(Linked(peer.replica_id, peer.incarnation, session.scheme, session.device, session.latency_s))
        self.probe(peer.replica_id, max(MIN_PROBE_BYTES, int(session.bytes_per_s * JOIN_PROBE_S)))
        try:
            reason = await session.until_ended(self._on_message)
        finally:
            link.session = None
            self._on_down(session, reason)
            self._say_down(link, reason)
            if link.probe is not None:
                link.probe.cancel()
                link.probe = None
            await to_the_end(session.close())

    def _say_down(self, link: Link, reason: str) -> None:
        if link.said != reason:
            link.said = reason
            self._emit(Unlinked(link.peer.replica_id, link.peer.incarnation, reason))

    async def _probe(self, link: Link, session: Session, num_bytes: int) -> None:
        rate = session.bytes_per_s
        if rate > 0.0:
            num_bytes = min(num_bytes, max(MIN_PROBE_BYTES, int(rate * MAX_PROBE_S)))
        deadline_s = PROBE_BASE_S + (PROBE_FACTOR * num_bytes / rate if rate > 0.0 else 0.0)
        try:
            async with asyncio.timeout(deadline_s):
                found = await session.prober.measure(num_bytes, first_piece(rate), lambda: self._busy(session))
            if found is not None:
                session.bytes_per_s = found[0] / found[1]
                self._emit(Measured(link.peer.replica_id, found[0], found[1], probe=True))
        except (TransferError, TimeoutError):
            # Real transfers go another way and have their own deadlines; a link that cannot be measured stays up.
            await self._renew(session)
        finally:
            if link.probe is asyncio.current_task():
                link.probe = None

    async def _renew(self, session: Session) -> None:
        try:
            await session.renew_scratch()
        except TransferError as error:
            session.end(f"neither a probe nor a new connection came through: {error}")

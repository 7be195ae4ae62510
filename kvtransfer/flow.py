"""Puts on one session: which is next, how many at a time, how large, and whether they get through.

Tickets are served in the order in which they began, so that each ends early instead of all ending late. A put is at
most `chunk_bytes`, less on a slow link; small ones are gathered where the layout lets them and the link would not
notice. The window bounds puts and with them bytes under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import xxhash

from kvtransfer.outgoing import Outgoing
from kvtransfer.protocol import TransferError
from kvtransfer.session import Session
from kvtransfer.source import Source
from kvtransfer.wire import BACK_TO_BACK, PUT_NOTE, Streaming

GATHER_BYTES = 1 << 20
GATHER_S = 0.002
PUT_S = 0.01
MIN_PUT_BYTES = 128 << 10
STALL_FACTOR = 4.0


class Flow:
    """The puts of one session. `on_put(outgoing, error)` is told of each that ended."""

    def __init__(
        self,
        session: Session,
        source: Source,
        on_put: Callable[[Outgoing, str | None], None],
        *,
        chunk_bytes: int,
        window: int,
        max_tickets: int,
        silence_s: float,
    ) -> None:
        self.session = session
        self.tickets: dict[str, Outgoing] = {}
        self._source = source
        self._on_put = on_put
        self._chunk_bytes = chunk_bytes
        self._window = window
        self._max_tickets = max_tickets
        self._silence_s = silence_s
        self._puts: set[asyncio.Task[None]] = set()
        self.moved_at = 0.0
        self._moved: int | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether any put is under way or about to be."""
        return bool(self._puts) or any(not one.ended and one.streaming for one in self.tickets.values())

    def pump(self) -> None:
        """Post what can be posted."""
        loop = asyncio.get_running_loop()
        while len(self._puts) < self._window and (self._renewing is None or self._renewing.done()):
            found = self._next()
            if found is None:
                return
            outgoing, cells = found
            if not self._puts:
                self.moved_at = loop.time()
            outgoing.in_flight += 1
            if not outgoing.streaming:
                outgoing.streaming, outgoing.streaming_at = True, loop.time()
                self.session.channel.send(Streaming(ticket_id=outgoing.ticket_id))
            # A kernel may take a whole hand-off into its buffer: then no put is under way and the link is busy.
            back_to_back = bool(self._puts) or self.session.bulk.unsent() > 0
            task = asyncio.create_task(self._put(outgoing, cells, back_to_back=back_to_back))
            self._puts.add(task)

    def stalled(self, now: float) -> str | None:
        """Why the session has to be given up: nothing got through for too long. To be called often."""
        moved = self.session.bulk.moved()
        if moved != self._moved:  # a link much slower than it was still moves, though no put ends for long
            self._moved = moved
            self.moved_at = now
        rate = self.session.bytes_per_s
        bound_s = self._silence_s
        if rate > 0.0:
            bound_s = max(bound_s, STALL_FACTOR * self._put_bytes() / rate)
        if self._puts and now - self.moved_at > bound_s:
            return f"no put got through within {bound_s:.1f} s"
        return None

    async def close(self) -> None:
        """Cancel what is under way; each ticket hears of it."""
        tasks = [*self._puts, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _put_bytes(self) -> int:
        rate = self.session.bytes_per_s
        by_rate = int(rate * PUT_S) if rate > 0.0 else self._chunk_bytes
        return min(self._chunk_bytes, max(MIN_PUT_BYTES, by_rate))

    def _next(self) -> tuple[Outgoing, range] | None:
        rate = self.session.bytes_per_s
        gather_bytes = min(GATHER_BYTES, int(rate * GATHER_S)) if rate > 0.0 else 0
        put_bytes = self._put_bytes()
        served = 0
        for outgoing in self.tickets.values():
            if outgoing.ended or not outgoing.opened or outgoing.cells.all_taken:
                continue
            served += 1
            if served > self._max_tickets:
                return None
            size = outgoing.cells.slot.block_bytes
            cells = outgoing.cells.next_message(put_bytes // size, gather_bytes // size)
            if cells is not None:
                return outgoing, cells
        return None

    async def _put(self, outgoing: Outgoing, cells: range, *, back_to_back: bool) -> None:
        error: str | None = "cancelled"
        size = outgoing.cells.slot.block_bytes
        try:
            views = self._source.views(outgoing, cells)
            digest = xxhash.xxh3_64()
            for view in views:
                digest.update(view)
            offset, length = cells.start * size, len(cells) * size
            outgoing.counted(offset, length, digest.intdigest())
            note = PUT_NOTE.pack(BACK_TO_BACK if back_to_back else 0, digest.intdigest())
            await self.session.bulk.put(outgoing.slot_id, offset, views, note)
            self.moved_at = asyncio.get_running_loop().time()
            error = None
        except TransferError as failed:
            error = str(failed)
            self._renew()
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._puts.discard(task)
            outgoing.in_flight -= 1
            self._on_put(outgoing, error)

    def _renew(self) -> None:
        """A put failed: what follows goes over a new connection. What else was on the old one fails by itself."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renewal())

    async def _renewal(self) -> None:
        try:
            await self.session.renew_bulk()
        except TransferError as error:
            self.session.end(f"the bulk connection broke and could not be made again: {error}")
        else:
            asyncio.get_running_loop().call_soon(self.pump)

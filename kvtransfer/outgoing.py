"""One hand-off at the sender: what is computed, what was put, and how it ends. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.handoff import KVTicket
from kvtransfer.session import Session
from kvtransfer.spans import ReadyCells
from kvtransfer.wire import Commit, put_digest, slot_id


@dataclass(slots=True, eq=False)
class Outgoing:
    """A ticket that this replica fulfils.

    `blocks`: the sequence's whole block table. `opened`: the receiver expects its puts. `ended`: no further put of it.
    """

    ticket: KVTicket
    blocks: tuple[int, ...]
    session: Session
    cells: ReadyCells
    payload: bytes | None = None
    in_flight: int = 0
    num_puts: int = 0
    num_bytes: int = 0
    digest: int = 0
    opened: bool = False
    streaming: bool = False
    streaming_at: float = 0.0
    compute_done: bool = False
    committed: bool = False
    ended: bool = False
    stop_requested: bool = False
    ack_deadline: float = 0.0
    told_at: float = 0.0

    @property
    def ticket_id(self) -> str:
        """The ticket's id."""
        return self.ticket.ticket_id

    @property
    def slot_id(self) -> bytes:
        """Where its puts go."""
        return slot_id(self.ticket.ticket_id)

    def counted(self, offset: int, length: int, digest: int) -> None:
        """One more put was posted."""
        self.num_puts += 1
        self.num_bytes += length
        self.digest = (self.digest + put_digest(offset, length, digest)) & 0xFFFFFFFFFFFFFFFF

    def commit(self) -> Commit | None:
        """What to commit with, once everything was put and the owner has committed; None before, and only once."""
        done = self.cells.all_taken and not self.in_flight
        if not done or self.payload is None or self.committed or self.ended:
            return None
        self.committed = True
        return Commit(
            ticket_id=self.ticket_id,
            num_puts=self.num_puts,
            num_bytes=self.num_bytes,
            digest=self.digest,
            payload=self.payload,
        )

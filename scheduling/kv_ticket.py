"""The life of one KV ticket (`contracts.handoff.TicketStatus`), the same for every distance. No policy.

Between two replicas both keep their own record of the one ticket: the receiver from the reservation on, the sender from
its first chunk on. Inside one replica the same steps run at distance zero: blocks are taken (`RESERVED`), filled
(`SENDING`), whole (`COMMITTED`), given back (`RELEASED`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contracts.errors import InvalidTransition
from contracts.handoff import TicketStatus

_NEXT: dict[TicketStatus, frozenset[TicketStatus]] = {
    TicketStatus.RESERVED: frozenset({TicketStatus.SENDING, TicketStatus.ABORTED}),
    TicketStatus.SENDING: frozenset({TicketStatus.COMMITTED, TicketStatus.ABORTED}),
    TicketStatus.COMMITTED: frozenset({TicketStatus.RELEASED, TicketStatus.ABORTED}),
    TicketStatus.RELEASED: frozenset(),
    TicketStatus.ABORTED: frozenset(),
}


@dataclass(slots=True, eq=False)
class TicketLife:
    """Where the hand-off of one sequence's KV stands, and how it came there. A recomputed sequence gets a new one."""

    owner: str
    reserved_at: float
    status: TicketStatus = TicketStatus.RESERVED
    history: list[tuple[TicketStatus, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history.append((self.status, self.reserved_at))

    def move_to(self, status: TicketStatus, now: float) -> None:
        """Change the status. Raises `InvalidTransition` with the whole history."""
        if status not in _NEXT[self.status]:
            story = " -> ".join(f"{past}@{at:.6f}" for past, at in self.history)
            raise InvalidTransition(f"ticket of {self.owner}: {self.status} cannot become {status} ({story})")
        self.status = status
        self.history.append((status, now))

    @property
    def is_open(self) -> bool:
        """Whether its blocks are still spoken for."""
        return bool(_NEXT[self.status])

    def close(self, now: float, *, finished: bool) -> None:
        """The sequence gives its blocks up: released when it had all its KV and finished, aborted otherwise."""
        if self.is_open:
            well = finished and self.status is TicketStatus.COMMITTED
            self.move_to(TicketStatus.RELEASED if well else TicketStatus.ABORTED, now)

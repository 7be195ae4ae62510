"""The narrow, push-shaped protocol behind which every transport stands.

The receiving side opens a *slot*: an unguessable name for a list of spans of its own memory, whose concatenation is the
slot's byte space. The sending side puts bytes at an offset of that space; when they are there, the receiving side is
told, together with a short note of the sender's. Nothing else is ever written: an unknown, closed or overrun slot
swallows the bytes and counts them.

One transport is one module; it alone imports its library. Control messages (hello, tickets, commits) do not go through
it but over the plain connection of `kvtransfer.session`, which also authenticates: a bulk connection presents the
token that its session was given, and a receiver that does not know the token closes it before it reads anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from contracts.errors import PhaseServeError

SLOT_ID_BYTES = 16
TOKEN_BYTES = 32
MAX_NOTE_BYTES = 256

OnLanded = Callable[[bytes, int, int, bytes], None]
"""`(slot_id, offset, length, note)`: these bytes of the slot are in memory now. Called on the transfer loop."""

Admit = Callable[[bytes], bool]
"""Whether a bulk connection with this token belongs to a live, authenticated session."""


class TransferError(PhaseServeError):
    """A transfer or a link failed: peer gone, deadline over, refused. The message says which and why."""

    code = "transfer_error"


class Span(NamedTuple):
    """`length` bytes at `offset` of the registered memory. A tuple: a large hand-off makes a million of them."""

    offset: int
    length: int


class BulkReceiver(Protocol):
    """Takes puts into one registered memory. All methods on the transfer loop."""

    @property
    def endpoint(self) -> str:
        """Where senders connect: `scheme://...`. Valid after `start`."""
        ...

    async def start(self) -> None:
        """Listen. Raises `TransferError`."""
        ...

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """Puts into `slot_id` (16 bytes) go to `spans`. Raises `ValueError` for spans outside the memory."""
        ...

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """When this returns nothing writes to the slot's memory any more. Idempotent, never raises.

        `sender_stopped`: the sender said that it has no put under way. Without it a one-sided transport has to cut the
        sender off.
        """
        ...

    async def close(self) -> None:
        """End all connections; afterwards the memory is not touched. Idempotent."""
        ...


class BulkSender(Protocol):
    """Puts bytes into slots of one peer. All methods on the transfer loop; puts may overlap (bounded by the owner)."""

    @property
    def device(self) -> str:
        """What the bytes go over, as far as the transport knows: `eth0`, `mlx5_0:1`, `memory`."""
        ...

    def moved(self) -> int | None:
        """A count that grows while bytes get through; None where only the end of a put tells."""
        ...

    def unsent(self) -> int:
        """Bytes of puts that have returned, but wait in this host for the network; 0 where nobody knows."""
        ...

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """Write the concatenation of `source` at `offset` of the slot's byte space, then deliver `note`.

        Returns when the source may be changed again (not: when the bytes have landed). Puts land in any order; each is
        announced once. Raises `TransferError` when the connection is broken; cancelling breaks the connection.
        """
        ...

    async def close(self) -> None:
        """Deliver what was put, within a short deadline, then end. Idempotent, never raises."""
        ...


class Transport(Protocol):
    """One way to move bytes."""

    @property
    def scheme(self) -> str:
        """`tcp`, `ucx`, `nixl`, `cma` or `loopback`: the scheme of its endpoints."""
        ...

    def unavailable(self) -> str | None:
        """Why it cannot be used in this process (library missing, not permitted), or None."""
        ...

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> BulkReceiver:
        """A receiver for one memory (writable, contiguous bytes)."""
        ...

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> BulkSender:
        """A connection to a peer's receiver; sources of its puts lie in `memory`. Raises `TransferError`."""
        ...

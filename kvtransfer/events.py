"""What the transfer service tells its owner, from its own thread. Past tense; ids are ticket ids or peer ids."""

from __future__ import annotations

import msgspec

from contracts.handoff import HandoffReport


class Arriving(msgspec.Struct, frozen=True):
    """Receiver: the sender of this ticket gave a sign of life; see `contracts.replica_io.KVArriving`.

    Sender: bytes get through on the ticket's link; what was not put yet is left.
    """

    ticket_id: str
    bytes_left: int
    bytes_per_s: float
    expected_s: float


class Received(msgspec.Struct, frozen=True):
    """Receiver: count and checksum of every layer agree. `payload` is what the sender committed with."""

    ticket_id: str
    payload: bytes
    report: HandoffReport


class Lost(msgspec.Struct, frozen=True):
    """Receiver: the KV of this ticket will not come whole; see `contracts.replica_io.KVLost`."""

    ticket_id: str
    reason: str
    corrupt: bool = False
    finished: bool = False


class Sent(msgspec.Struct, frozen=True):
    """Sender: the receiver acknowledged the commit."""

    ticket_id: str
    num_bytes: int


class SendFailed(msgspec.Struct, frozen=True):
    """Sender: the hand-off failed."""

    ticket_id: str
    reason: str


class Closed(msgspec.Struct, frozen=True):
    """Either side, answer to `stop`: nothing touches the memory of this ticket any more."""

    ticket_id: str


class Linked(msgspec.Struct, frozen=True):
    """Sender: the peer passed handshake and self-test."""

    peer_id: str
    peer_incarnation: str
    transport: str
    device: str
    latency_s: float


class Unlinked(msgspec.Struct, frozen=True):
    """Sender: the peer cannot be sent to (any more), and why."""

    peer_id: str
    peer_incarnation: str
    reason: str


class Measured(msgspec.Struct, frozen=True):
    """Sender: `num_bytes` crossed the link within `duration_s`, by the receiver's clock.

    `at_least`: the link waited for the engine meanwhile and may be faster (by the sender's clock).
    """

    peer_id: str
    num_bytes: int
    duration_s: float
    probe: bool
    at_least: bool = False


TransferEvent = Arriving | Received | Lost | Sent | SendFailed | Closed | Linked | Unlinked | Measured

"""Control messages between the giving and the taking side of one link: tagged msgpack values in sealed frames.

One frame is a length (4 bytes, big endian) and that many bytes: the message and its seal (`kvtransfer.auth`). The side
that dials sends KV. Durations only, never points in time. Ticket ids are the 32 hexadecimal digits of the ticket.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec
import xxhash

from contracts.errors import ProtocolError
from contracts.kv import Fingerprint
from kvtransfer.auth import SEAL_BYTES

PROTOCOL = 1
MAX_FRAME_BYTES = 8 << 20
MAX_REASON_CHARS = 500
LENGTH = struct.Struct(">I")
PUT_NOTE = struct.Struct(">BQ")
BACK_TO_BACK = 1
"""Flag in the note of a put: the link was busy when it was posted, so its landing tells the rate."""
PROBE_NOTE = struct.Struct(">BIQ")


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    pass


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What each side says in the handshake: who it is, which process, and what its KV looks like."""

    replica_id: str
    incarnation: str
    fingerprint: Fingerprint
    protocol: int = PROTOCOL


class BulkOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Where puts go: into KV blocks, and into scratch memory (self-test, probes) by the same transport."""

    scheme: str
    endpoint: str
    scratch_endpoint: str


class Offer(_Message, frozen=True):
    """Receiver, first: what can be connected to, best first, and the scratch slot of this session (16 bytes)."""

    bulk: tuple[BulkOffer, ...]
    scratch_slot: bytes


class Chosen(_Message, frozen=True):
    """Sender: this transport came up and will be used; slots are to be opened there. `refused`: nothing came up."""

    scheme: str
    device: str
    refused: str = ""


class Ready(_Message, frozen=True):
    """Receiver: answer to `Chosen`; tickets may begin."""


class Begin(_Message, frozen=True):
    """Sender: it holds this ticket and its KV will come. A ticket begins once. Answered by `Opened` or `Abort`."""

    ticket_id: str


class Opened(_Message, frozen=True):
    """Receiver: the ticket's slot is open. Puts before that might arrive ahead of the slot, and be swallowed."""

    ticket_id: str


class Expect(_Message, frozen=True):
    """Sender: the prompt still waits or computes and its KV is expected in `expected_s`. Goes to every peer, so the
    ticket is named by `ticket_name`, from which nobody learns its id."""

    name: bytes
    expected_s: float


class Streaming(_Message, frozen=True):
    """Sender: the first put of this ticket is under way."""

    ticket_id: str


class ComputeDone(_Message, frozen=True):
    """Sender: the last layer is computed; what is missing now is exposed."""

    ticket_id: str


class Commit(_Message, frozen=True):
    """Sender: everything was put, and this is what it was. `digest` is the sum of `put_digest` over all puts."""

    ticket_id: str
    num_puts: int
    num_bytes: int
    digest: int
    payload: bytes


class Ack(_Message, frozen=True):
    """Receiver: all is there and verified. `measured_bytes` crossed the link in `measured_s` (0: not measurable)."""

    ticket_id: str
    measured_bytes: int
    measured_s: float


class Abort(_Message, frozen=True):
    """Either side: the hand-off is over. A receiver's `Abort` is answered by `Stopped`."""

    ticket_id: str
    reason: str


class Stopped(_Message, frozen=True):
    """Sender: no put of this ticket is under way and none will follow."""

    ticket_id: str


class ProbeBegin(_Message, frozen=True):
    """Sender: puts of `num_bytes` in all go into the scratch slot, noted with `probe_id`. `verify`: none of them
    overlaps another one, so that their digests can be checked."""

    probe_id: int
    num_bytes: int
    verify: bool


class ProbeResult(_Message, frozen=True):
    """Receiver: all of the probe has landed; the tail of it, by the receiver's clock. `intact`: every digest agreed."""

    probe_id: int
    intact: bool
    tail_bytes: int
    tail_s: float


class Ping(_Message, frozen=True):
    """Either side: alive. Answered by `Pong` with the same nonce."""

    nonce: int


class Pong(_Message, frozen=True):
    """Answer to `Ping`."""

    nonce: int


class Bye(_Message, frozen=True):
    """Either side: the session ends, and why."""

    reason: str


Message = (
    Offer
    | Chosen
    | Ready
    | Begin
    | Opened
    | Expect
    | Streaming
    | ComputeDone
    | Commit
    | Ack
    | Abort
    | Stopped
    | ProbeBegin
    | ProbeResult
    | Ping
    | Pong
    | Bye
)

MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - SEAL_BYTES - 1024
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_identities = msgspec.msgpack.Decoder(Identity)


def encode(message: Message | Identity) -> bytes:
    """The message as bytes, not sealed or framed yet."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """What the peer said. Raises `ProtocolError`."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not a message of the data plane: {error}") from error


def decode_identity(data: bytes) -> Identity:
    """Who the peer says it is. Raises `ProtocolError`, also when it speaks another protocol version."""
    try:
        identity = _identities.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"not an identity of the data plane: {error}") from error
    if identity.protocol != PROTOCOL:
        raise ProtocolError(f"data plane protocol differs: {PROTOCOL} here, {identity.protocol} there")
    return identity


def frame(data: bytes) -> bytes:
    """With its length in front. Raises `ValueError` above `MAX_FRAME_BYTES`."""
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(data)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return LENGTH.pack(len(data)) + data


def slot_id(ticket_id: str) -> bytes:
    """The slot of a ticket. Raises `ValueError` unless it is 32 hexadecimal digits."""
    slot = bytes.fromhex(ticket_id)
    if len(slot) != 16 or len(ticket_id) != 32:
        raise ValueError("a ticket id has 32 hexadecimal digits")
    return slot


def put_digest(offset: int, length: int, digest: int) -> int:
    """One put's part of a commit's digest: the bytes and where they went."""
    return xxhash.xxh3_64_intdigest(struct.pack(">QQQ", offset, length, digest))


def ticket_name(ticket_id: str) -> bytes:
    """What a ticket is called where those who do not hold it may listen."""
    return hashlib.sha256(b"ticket " + ticket_id.encode()).digest()[:16]

"""Control messages between router and replica: tagged msgpack values over ZMQ.

The replica binds a ROUTER socket, each router connects a DEALER. One message is one frame. Durations only, never
points in time. A message that does not decode is counted, logged and dropped; it never ends the process.
"""

from __future__ import annotations

import msgspec

from contracts.errors import ErrorInfo, ProtocolError
from contracts.handoff import KVTicket, Peer
from contracts.phase import Role
from contracts.prefixes import PrefixChange
from contracts.replica_io import SequenceOutput
from contracts.request import Request
from contracts.views import ReplicaIdentity, ReplicaView

PROTOCOL_VERSION = 3


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


class Hello(_Message, frozen=True):
    """Router to replica: first message, and again until a `Welcome` arrives. A new `router_id` is a new router."""

    router_id: str
    protocol: int = PROTOCOL_VERSION


class Submit(_Message, frozen=True):
    """Router to replica: sequences of one client request, placed together (they share the prompt)."""

    requests: tuple[Request, ...]


class Cancel(_Message, frozen=True):
    """Router to replica: nobody waits for these sequences. Idempotent; unknown ids are ignored."""

    request_ids: tuple[str, ...]


class Lease(_Message, frozen=True):
    """Router to replica: prefill is allowed for `duration_s` (0 revokes)."""

    duration_s: float


class Drain(_Message, frozen=True):
    """Router to replica: accept nothing new, finish, then `Goodbye`."""


class Assign(_Message, frozen=True):
    """Router to replica: have this role from now on. Idempotent; the next views say which one it has."""

    role: Role


class Ping(_Message, frozen=True):
    """Router to replica, every heartbeat interval: a replica cancels the work of a router that falls silent."""

    nonce: int


class Peers(_Message, frozen=True):
    """Router to replica: the replicas it may send KV to; those left out are to be forgotten."""

    peers: tuple[Peer, ...]


RouterMessage = Hello | Submit | Cancel | Lease | Drain | Assign | Ping | Peers


class Welcome(_Message, frozen=True):
    """Replica to router: answer to `Hello`."""

    identity: ReplicaIdentity
    view: ReplicaView
    protocol: int = PROTOCOL_VERSION


class Heartbeat(_Message, frozen=True):
    """Replica to router: every heartbeat interval, and after each step that changed something."""

    view: ReplicaView


class Outputs(_Message, frozen=True):
    """Replica to router: what one step produced for this router's sequences."""

    outputs: tuple[SequenceOutput, ...]


class Refused(_Message, frozen=True):
    """Replica to router: the sequence was never accepted."""

    request_id: str
    error: ErrorInfo


class Reserved(_Message, frozen=True):
    """Replica to router: the decode leg has its blocks; its KV is to be sent under `ticket`."""

    request_id: str
    ticket: KVTicket


class Prefixes(_Message, frozen=True):
    """Replica to router: how its prefix cache changed since the last such message on this connection (the first one
    says everything, with `restart`)."""

    change: PrefixChange


class Goodbye(_Message, frozen=True):
    """Replica to router: drained or stopping; no message follows."""

    reason: str


ReplicaMessage = Welcome | Heartbeat | Outputs | Refused | Reserved | Prefixes | Goodbye

_encoder = msgspec.msgpack.Encoder()
_router_decoder = msgspec.msgpack.Decoder(RouterMessage)
_replica_decoder = msgspec.msgpack.Decoder(ReplicaMessage)


def encode(message: RouterMessage | ReplicaMessage) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode_router_message(frame: bytes) -> RouterMessage:
    """What a router said. Raises `ProtocolError`."""
    try:
        return _router_decoder.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a router message: {error}") from error


def decode_replica_message(frame: bytes) -> ReplicaMessage:
    """What a replica said. Raises `ProtocolError`."""
    try:
        return _replica_decoder.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a replica message: {error}") from error

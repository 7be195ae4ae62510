"""Handing one sequence's KV from one replica to another: the ticket, the two legs, the link between two replicas.

A ticket goes `RESERVED -> SENDING -> COMMITTED -> RELEASED`, or ends as `ABORTED`. The receiver reserves blocks first
and issues the ticket; the sender pushes each layer of each chunk as soon as it is computed, then commits with its
first output token; the receiver verifies count and checksum of every layer before the sequence may decode.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from contracts.kv import Fingerprint


class TicketStatus(StrEnum):
    """Where a hand-off stands, on either side (and at distance zero inside one replica)."""

    RESERVED = "reserved"
    SENDING = "sending"
    COMMITTED = "committed"
    RELEASED = "released"
    ABORTED = "aborted"


FINISHED = "the first output token was the last one"
"""The reason by which a sender ends a hand-off whose sequence has ended well: there is nothing to hand over."""


class KVTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Permission to write one sequence's KV into reserved blocks of the receiver, once.

    `ticket_id`: 32 hexadecimal digits that nobody can guess. `num_tokens` is the number of tokens whose KV the
    sequence needs (all its tokens when the ticket was issued); the receiver holds the first `skip_tokens` of them
    already (a multiple of its `block_size`), so `blocks` are its blocks of tokens `skip_tokens` to `num_tokens - 1`.
    """

    ticket_id: str
    receiver_id: str
    receiver_incarnation: str
    num_tokens: int
    skip_tokens: int
    blocks: tuple[int, ...]
    block_size: int


class PrefillLeg(msgspec.Struct, frozen=True, kw_only=True, tag="prefill"):
    """The replica computes the prompt and the first output token, and pushes the KV under `ticket`."""

    ticket: KVTicket


class DecodeLeg(msgspec.Struct, frozen=True, kw_only=True, tag="decode"):
    """The replica reserves blocks, takes the KV in from `prefill_replica_id`, and decodes.

    `expected_s` is the router's prediction of queue, prefill and exposed transfer at the sender: it sizes the first
    lease, together with `link_bytes_per_s`.
    """

    prefill_replica_id: str
    expected_s: float
    link_bytes_per_s: float


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that KV may be sent to. `endpoints` are data plane addresses, best first (`tcp://host:port`, ...)."""

    replica_id: str
    incarnation: str
    endpoints: tuple[str, ...]
    fingerprint: Fingerprint


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """What the sending side knows about its link to one peer.

    `why_not` says why the pair cannot be used (no connection yet, fingerprints differ: both values named), None when it
    can. `bytes_per_s` is None before the first measurement; `spread` is its relative standard deviation; `age_s` the
    time since the last measurement. `bytes_in_flight` were granted and not acknowledged yet.
    """

    peer_id: str
    peer_incarnation: str
    why_not: str | None = None
    transport: str = ""
    device: str = ""
    bytes_per_s: float | None = None
    spread: float = 0.0
    latency_s: float = 0.0
    age_s: float = 0.0
    bytes_in_flight: int = 0
    transfers: int = 0
    failed_transfers: int = 0


class HandoffReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one hand-off cost, as the receiver saw it.

    `num_bytes` arrived within `transfer_s`; of that `exposed_s` came after the sender had computed its last layer.
    The rest was hidden behind compute.
    """

    num_bytes: int
    transfer_s: float
    exposed_s: float
    transport: str
    prefill_replica_id: str

    @property
    def hidden_share(self) -> float:
        """Part of the transfer that cost no time, 0 to 1."""
        return 1.0 - min(1.0, self.exposed_s / self.transfer_s) if self.transfer_s > 0.0 else 1.0

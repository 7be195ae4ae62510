"""Taking KV in: the ticket that lets one sender write into reserved blocks, and what a verified hand-off says.

The bytes themselves are written and verified by the transfer; no step runs for a sequence before it is all there.
"""

from __future__ import annotations

from contracts.errors import ProtocolError
from contracts.first_tokens import decode_first_tokens
from contracts.handoff import HandoffReport, KVTicket
from contracts.replica_io import KVReceived, ReserveKV
from contracts.views import ReplicaIdentity


def issue_ticket(reserve: ReserveKV, ticket_id: str, receiver: ReplicaIdentity) -> KVTicket:
    """The permission for the sender. `ticket_id`: 32 hexadecimal digits that nobody can guess."""
    return KVTicket(
        ticket_id=ticket_id,
        receiver_id=receiver.replica_id,
        receiver_incarnation=receiver.incarnation,
        num_tokens=reserve.num_tokens,
        skip_tokens=reserve.skip_tokens,
        blocks=reserve.blocks,
        block_size=receiver.fingerprint.layout.block_size,
    )


def received(sequence_id: str, payload: bytes, report: HandoffReport, vocab_size: int) -> KVReceived:
    """The core's event for a verified hand-off. Raises `ProtocolError` when its payload cannot be gone on from."""
    first = decode_first_tokens(payload)
    if not all(0 <= token_id < vocab_size for token_id in first.token_ids):
        raise ProtocolError(f"the sender's first token lies outside the vocabulary of {vocab_size}")
    return KVReceived(sequence_id, first.token_ids, first.logprobs, report)

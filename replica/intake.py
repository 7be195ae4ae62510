"""What a Submit must be before the core sees it: one request that a router let through must not fail a whole batch."""

from __future__ import annotations

import math
import re
from collections.abc import Container

from contracts.errors import InvalidRequest, PhaseServeError, Unavailable
from contracts.handoff import DecodeLeg, KVTicket, PrefillLeg
from contracts.request import Request

_TICKET_ID = re.compile(r"[0-9a-f]{32}")


def wrong_request(requests: tuple[Request, ...], in_use: Container[str], vocab_size: int) -> InvalidRequest | None:
    """Why the sequences of one client request cannot be accepted, or None. `in_use`: the router's live ids."""
    ids = {request.request_id for request in requests}
    if len(ids) < len(requests) or any(request_id in in_use for request_id in ids):
        return InvalidRequest("a request id is in use already", param="request_id")
    checked: tuple[int, ...] | None = None
    for request in requests:
        prompt = request.prompt_token_ids
        if prompt != checked and not _all_tokens(prompt, vocab_size):
            return InvalidRequest(f"a prompt token lies outside the vocabulary of {vocab_size}", param="prompt")
        checked = prompt
        if not _all_tokens(request.output_token_ids, vocab_size):
            return InvalidRequest(f"an output token lies outside the vocabulary of {vocab_size}", param="output")
        if any(not 0 <= token_id < vocab_size for token_id in request.sampling.logit_bias):
            return InvalidRequest(f"a biased token lies outside the vocabulary of {vocab_size}", param="logit_bias")
    return None


def wrong_leg(requests: tuple[Request, ...], replica_id: str, tickets: Container[str] | None) -> PhaseServeError | None:
    """Why one of these cannot be the leg of a hand-off here, or None. `tickets`: the ids that are held here already;
    None where KV can neither be given nor taken."""
    seen: set[str] = set()
    for request in requests:
        leg = request.leg
        if leg is None:
            continue
        if tickets is None:
            return Unavailable(f"replica {replica_id} can neither give nor take KV")
        if isinstance(leg, DecodeLeg):
            wrong = _wrong_decode_leg(leg, replica_id)
        else:
            wrong = _wrong_prefill_leg(leg, replica_id)
            if wrong is None and (leg.ticket.ticket_id in tickets or leg.ticket.ticket_id in seen):
                wrong = "the ticket is in use already: each is valid once"
            seen.add(leg.ticket.ticket_id)
        if wrong is not None:
            return InvalidRequest(wrong, param="leg")
    return None


def _all_tokens(token_ids: tuple[int, ...], vocab_size: int) -> bool:
    return not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size)


def _wrong_decode_leg(leg: DecodeLeg, replica_id: str) -> str | None:
    if leg.prefill_replica_id == replica_id:
        return "a replica does not hand over to itself"
    if not (math.isfinite(leg.expected_s) and math.isfinite(leg.link_bytes_per_s)):
        return "a lease cannot follow from numbers that are not finite"
    return None


def _wrong_prefill_leg(leg: PrefillLeg, replica_id: str) -> str | None:
    ticket = leg.ticket
    if ticket.receiver_id == replica_id:
        return "a replica does not hand over to itself"
    if not _TICKET_ID.fullmatch(ticket.ticket_id):
        return "a ticket id has 32 hexadecimal digits"
    return _wrong_blocks(ticket)


def _wrong_blocks(ticket: KVTicket) -> str | None:
    size, skip = ticket.block_size, ticket.skip_tokens
    if size < 1 or skip % size or not 0 <= skip < ticket.num_tokens:
        return f"a ticket of {ticket.num_tokens} tokens cannot skip {skip} in blocks of {size}"
    wanted = -(-ticket.num_tokens // size) - skip // size
    if len(ticket.blocks) != wanted:
        return f"the ticket names {len(ticket.blocks)} blocks where {wanted} are needed"
    return None

"""What a replica refuses before its core sees it: legs that cannot be legs here, tokens outside the vocabulary."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.errors import InvalidRequest, Unavailable
from contracts.handoff import DecodeLeg, KVTicket, PrefillLeg
from contracts.request import Request, SamplingParams
from replica.intake import wrong_leg, wrong_request

TICKET = KVTicket(
    ticket_id="0123456789abcdef" * 2, receiver_id="d", receiver_incarnation="x", num_tokens=40, skip_tokens=16,
    blocks=(5, 9), block_size=16,
)  # fmt: skip
DECODE = DecodeLeg(prefill_replica_id="p", expected_s=1.0, link_bytes_per_s=1e9)


def request(leg: Any = None, **fields: Any) -> Request:
    values = {"request_id": "a", "prompt_token_ids": tuple(range(38)), "output_token_ids": (1, 2), **fields}
    return Request(sampling=SamplingParams(), leg=leg, **values)


def prefill(**changes: Any) -> Request:
    return request(PrefillLeg(ticket=msgspec.structs.replace(TICKET, **changes)))


def test_right_legs_pass() -> None:
    assert wrong_leg((request(), request(DECODE), prefill()), "me", set()) is None


def test_a_replica_without_a_data_plane_takes_no_leg() -> None:
    assert wrong_leg((request(),), "me", None) is None
    assert isinstance(wrong_leg((request(DECODE),), "me", None), Unavailable)


def test_a_ticket_is_valid_once() -> None:
    assert isinstance(wrong_leg((prefill(),), "me", {TICKET.ticket_id}), InvalidRequest)
    assert isinstance(wrong_leg((prefill(), prefill()), "me", set()), InvalidRequest)


@pytest.mark.parametrize(
    "changes",
    [
        {"ticket_id": "short"},
        {"ticket_id": "g" * 32},
        {"receiver_id": "me"},
        {"skip_tokens": 8},
        {"skip_tokens": -16},
        {"skip_tokens": 48},
        {"blocks": (5,)},
        {"blocks": (5, 6, 7)},
        {"block_size": 0},
    ],
)
def test_a_ticket_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    wrong = wrong_leg((prefill(**changes),), "me", set())
    assert isinstance(wrong, InvalidRequest)
    assert wrong.param == "leg"


@pytest.mark.parametrize(
    "changes", [{"prefill_replica_id": "me"}, {"expected_s": float("nan")}, {"link_bytes_per_s": float("inf")}]
)
def test_a_decode_leg_that_gives_no_lease_is_refused(changes: dict[str, Any]) -> None:
    leg = msgspec.structs.replace(DECODE, **changes)
    assert isinstance(wrong_leg((request(leg),), "me", set()), InvalidRequest)


def test_output_tokens_are_judged_like_prompt_tokens() -> None:
    assert wrong_request((request(),), set(), 100) is None
    wrong = wrong_request((request(output_token_ids=(100,)),), set(), 100)
    assert isinstance(wrong, InvalidRequest)
    assert wrong.param == "output"

"""The hand-offs of one replica without a network: whose ticket is whose, what the service and the core are told."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.batch import TokenLogprobs
from contracts.first_tokens import FirstTokens, decode_first_tokens, encode_first_tokens
from contracts.handoff import HandoffReport, KVTicket
from contracts.kv import Fingerprint, KVLayout
from contracts.replica_io import (
    CommitKV,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    LinkDown,
    LinkMeasured,
    LinkUp,
    ProbeLink,
    ReserveKV,
    SendKV,
    StopKV,
)
from contracts.views import ReplicaIdentity
from engine.fake import fake_layout, fake_spec
from kvtransfer.events import Arriving, Closed, Linked, Lost, Measured, Received, SendFailed, Sent, Unlinked
from prefill_workers.kv_giver import KVGiver
from replica.handoffs import Handoffs

SPEC = fake_spec(vocab_size=100, max_context=1024)
LAYOUT: KVLayout = fake_layout(SPEC)
ME = ReplicaIdentity(
    replica_id="me",
    incarnation="one",
    version="0",
    model=SPEC,
    fingerprint=Fingerprint(model_digest="", layout=LAYOUT),
    num_blocks=64,
    max_running=8,
    max_waiting=8,
)
REPORT = HandoffReport(num_bytes=1, transfer_s=1.0, exposed_s=0.0, transport="tcp", prefill_replica_id="p")
RESERVE = ReserveKV(request_id="a#1", prefill_replica_id="p", num_tokens=40, skip_tokens=16, blocks=(5, 9))
TICKET = KVTicket(
    ticket_id="ab" * 16, receiver_id="d", receiver_incarnation="x", num_tokens=20, skip_tokens=0, blocks=(1, 2),
    block_size=16,
)  # fmt: skip
SEND = SendKV(request_id="a#1", ticket=TICKET, blocks=(3, 4), ready_tokens=0)


class Spy:
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def spy() -> Spy:
    return Spy()


@pytest.fixture
def handoffs(spy: Any) -> Handoffs:
    return Handoffs(spy, KVGiver(spy), ME)


def test_the_life_of_a_receiver(handoffs: Handoffs, spy: Spy) -> None:
    ticket = handoffs.reserve(RESERVE)
    assert spy.calls == [("reserve", ticket, "p")]
    assert len(bytes.fromhex(ticket.ticket_id)) == 16
    assert (ticket.receiver_id, ticket.receiver_incarnation, ticket.block_size) == ("me", "one", LAYOUT.block_size)
    assert (ticket.num_tokens, ticket.skip_tokens, ticket.blocks) == (40, 16, (5, 9))
    assert handoffs.event(Arriving(ticket.ticket_id, 100, 5.0, 0.5)) == KVArriving("a#1", 100, 5.0, 0.5)
    first = FirstTokens((7,), (TokenLogprobs(7, -0.5, ((7, -0.5), (8, -1.0))),))
    told = handoffs.event(Received(ticket.ticket_id, encode_first_tokens(first), REPORT))
    assert told == KVReceived("a#1", (7,), first.logprobs, REPORT)
    assert len(handoffs) == 0
    assert handoffs.event(Arriving(ticket.ticket_id, 1, 1.0, 1.0)) is None


def test_no_two_tickets_have_one_id(handoffs: Handoffs) -> None:
    assert handoffs.reserve(RESERVE).ticket_id != handoffs.reserve(RESERVE).ticket_id


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", encode_first_tokens(FirstTokens(())), encode_first_tokens(FirstTokens((100,)))]
)
def test_a_payload_that_cannot_be_gone_on_from_is_a_lost_hand_off(handoffs: Handoffs, payload: bytes) -> None:
    ticket = handoffs.reserve(RESERVE)
    assert isinstance(handoffs.event(Received(ticket.ticket_id, payload, REPORT)), KVLost)


def test_the_life_of_a_sender(handoffs: Handoffs, spy: Spy) -> None:
    handoffs.accepted("a#1", TICKET)
    assert TICKET.ticket_id in handoffs
    handoffs.renew(1.5)
    handoffs.send(SEND)
    handoffs.renew(0.5)
    handoffs.commit(CommitKV(request_id="a#1", token_ids=(7,)))
    handoffs.renew(0.1)
    payload = spy.calls[-1][2]
    assert spy.calls == [
        ("expected", TICKET.ticket_id, 1.5),
        ("send", TICKET, (3, 4), 0),
        ("expected", TICKET.ticket_id, 0.5),
        ("commit", TICKET.ticket_id, payload),
    ]
    assert decode_first_tokens(payload) == FirstTokens((7,))
    assert handoffs.event(Sent(TICKET.ticket_id, 99)) == KVSent("a#1", 99)
    assert len(handoffs) == 0
    assert TICKET.ticket_id not in handoffs


def test_a_failed_send_is_told_and_may_still_be_stopped(handoffs: Handoffs, spy: Spy) -> None:
    handoffs.send(SEND)
    assert handoffs.event(SendFailed(TICKET.ticket_id, "gone")) == KVSendFailed("a#1", "gone")
    assert handoffs.stop(StopKV("a#1", "gone")) is None
    assert spy.calls[-1] == ("stop", TICKET.ticket_id, "gone")
    assert handoffs.event(Closed(TICKET.ticket_id)) == KVClosed("a#1")
    assert len(handoffs) == 0


def test_a_stop_without_a_transfer_is_answered_at_once(handoffs: Handoffs) -> None:
    assert handoffs.stop(StopKV("nobody#1", "?")) == KVClosed("nobody#1")
    handoffs.accepted("a#1", TICKET)
    assert handoffs.stop(StopKV("a#1", "the client left")) == KVClosed("a#1")
    assert len(handoffs) == 0


def test_after_a_stop_only_the_last_word_counts(handoffs: Handoffs) -> None:
    """What was on its way when the stop came must not take away the ticket that the answer will name."""
    ticket = handoffs.reserve(RESERVE)
    assert handoffs.stop(StopKV("a#1", "the client left")) is None
    payload = encode_first_tokens(FirstTokens((7,)))
    assert handoffs.event(Received(ticket.ticket_id, payload, REPORT)) is None
    assert handoffs.event(Lost(ticket.ticket_id, "late")) is None
    assert handoffs.event(Closed(ticket.ticket_id)) == KVClosed("a#1")
    assert len(handoffs) == 0


def test_a_lost_hand_off_keeps_its_ticket_until_it_is_closed(handoffs: Handoffs) -> None:
    ticket = handoffs.reserve(RESERVE)
    assert handoffs.event(Lost(ticket.ticket_id, "bad sum", corrupt=True)) == KVLost("a#1", "bad sum", corrupt=True)
    assert handoffs.stop(StopKV("a#1", "bad sum")) is None
    assert handoffs.event(Closed(ticket.ticket_id)) == KVClosed("a#1")


def test_a_leg_that_ended_before_it_was_sent_leaves_nothing(handoffs: Handoffs) -> None:
    handoffs.accepted("a#1", TICKET)
    handoffs.ended("a#1")
    assert len(handoffs) == 0
    handoffs.send(SEND)
    handoffs.ended("a#1")  # handed over: its ticket lives on until the receiver acknowledges
    assert len(handoffs) == 1


def test_links_reach_the_core(handoffs: Handoffs, spy: Spy) -> None:
    assert handoffs.event(Linked("d", "x", "tcp", "lo", 1e-4)) == LinkUp("d", "x", "tcp", "lo", 1e-4)
    assert handoffs.event(Unlinked("d", "x", "gone")) == LinkDown("d", "x", "gone")
    assert handoffs.event(Measured("d", 1000, 0.5, True)) == LinkMeasured("d", 1000, 0.5, True)
    handoffs.probe(ProbeLink("d", 1 << 20))
    assert spy.calls == [("probe", "d", 1 << 20)]

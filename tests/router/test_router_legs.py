"""Two legs, one stream of tokens: whatever order the outputs of both replicas arrive in, and wherever it began."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.batch import PromptLogprobs, TokenLogprobs
from contracts.errors import ProtocolError
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from router.legs import Leg, PlacedSequence

P, D = "p0", "d0"


def placed(start: int = 0, *, waits: bool = False, pair: bool = True) -> PlacedSequence:
    sequence = PlacedSequence(
        number=0,
        sequence_id="s",
        start_index=start,
        decode=Leg(D, start),
        prefill_replica_id=P if pair else None,
        waits_for_prefill=waits,
    )
    if pair:
        sequence.prefill = Leg(P, start)
    return sequence


def said(index: int, *ids: int, finish: FinishReason | None = None) -> SequenceOutput:
    logprobs = tuple(TokenLogprobs(token, -1.0) for token in ids)
    return SequenceOutput(request_id="s", token_ids=ids, first_index=index, logprobs=logprobs, finish=finish)


class Client:
    """Takes outputs in as the router does."""

    def __init__(self, sequence: PlacedSequence, known: list[int]) -> None:
        self.sequence = sequence
        self.known = known
        self.finish: FinishReason | None = None
        self.num_logprobs = 0

    def hear(self, replica_id: str, output: SequenceOutput) -> None:
        leg = self.sequence.leg_on(replica_id)
        if leg is None:
            return
        quickly = self.sequence.goes_on(leg, output, self.known)
        for news in (output,) if quickly else self.sequence.take(leg, output, self.known):
            self.known += news.token_ids
            self.num_logprobs += len(news.logprobs)
            self.finish = news.finish or self.finish


@given(
    ids=st.lists(st.integers(3, 99), min_size=2, max_size=12),
    sizes=st.lists(st.integers(1, 4), max_size=12),
    start=st.integers(0, 5),
    prefill_at=st.integers(0, 12),
    waits=st.booleans(),
)
def test_every_interleaving_gives_each_token_once(
    ids: list[int], sizes: list[int], start: int, prefill_at: int, waits: bool
) -> None:
    """The sender's first token may come before, between or after the receiver's outputs."""
    before = list(range(1000, 1000 + start))
    client = Client(placed(start, waits=waits and start == 0), list(before))
    outputs = []
    at = 0
    cuts = itertools.chain(sizes, itertools.repeat(1))
    while at < len(ids):
        part = ids[at : at + next(cuts)]
        at += len(part)
        outputs.append(said(start + at - len(part), *part, finish=FinishReason.LENGTH if at >= len(ids) else None))
    messages = [(D, output) for output in outputs]
    messages.insert(min(prefill_at, len(messages)), (P, said(start, ids[0], finish=FinishReason.HANDED_OVER)))
    for replica_id, output in messages:
        client.hear(replica_id, output)
    assert client.known == before + ids
    assert client.num_logprobs == len(ids)
    assert client.finish is FinishReason.LENGTH
    assert client.sequence.end() == []


def test_nothing_is_shown_before_the_prompts_logprobs() -> None:
    client = Client(placed(waits=True), [])
    client.hear(D, said(0, 7))
    client.hear(D, said(1, 8))
    assert client.known == []
    client.hear(P, SequenceOutput(request_id="s", prompt_logprobs=(PromptLogprobs("s", 1, ()),)))
    assert client.known == []
    client.hear(P, said(0, 7, finish=FinishReason.HANDED_OVER))
    assert client.known == [7, 8]
    client.hear(D, said(2, 9))
    assert client.known == [7, 8, 9]


@pytest.mark.parametrize(
    ("replica_id", "output"),
    [
        (D, said(1, 5)),  # begins after its beginning
        (P, said(1, 5, finish=FinishReason.HANDED_OVER)),
        (D, said(0, 5, finish=FinishReason.HANDED_OVER)),  # it has nobody to hand over to
        (D, said(0, 6)),  # the sender said 5
    ],
)
def test_what_is_no_sequence_is_refused(replica_id: str, output: SequenceOutput) -> None:
    client = Client(placed(), [])
    if output.token_ids == (6,):
        client.hear(P, said(0, 5, finish=FinishReason.HANDED_OVER))
    known = list(client.known)
    with pytest.raises(ProtocolError):
        client.hear(replica_id, output)
    assert client.known == known


@pytest.mark.parametrize("index", [0, 2])
def test_a_leg_neither_repeats_nor_leaves_out(index: int) -> None:
    client = Client(placed(pair=False), [])
    client.hear(D, said(0, 5))
    with pytest.raises(ProtocolError, match="its next one is 1"):
        client.hear(D, said(index, 6))
    assert client.known == [5]


def test_a_single_replica_cannot_hand_over() -> None:
    with pytest.raises(ProtocolError, match="is to decode it"):
        Client(placed(pair=False), []).hear(D, said(0, 5, finish=FinishReason.HANDED_OVER))


def test_a_receiver_that_is_not_needed_leaves_the_end_to_the_sender() -> None:
    client = Client(placed(), [])
    client.hear(D, said(0, finish=FinishReason.HANDED_OVER))
    assert (client.known, client.finish) == ([], None)
    assert client.sequence.needs(P)
    assert not client.sequence.needs(D)
    client.hear(P, said(0, 5, finish=FinishReason.STOP))
    assert (client.known, client.finish) == ([5], FinishReason.STOP)


def test_a_receiver_that_began_does_not_leave_it_to_the_sender() -> None:
    client = Client(placed(), [])
    client.hear(P, said(0, 5, finish=FinishReason.HANDED_OVER))
    with pytest.raises(ProtocolError, match="is to decode it"):
        client.hear(D, said(0, finish=FinishReason.HANDED_OVER))


def test_who_is_told_of_the_end() -> None:
    both = placed()
    assert both.end() == [D, P]
    assert both.end() == []
    in_transfer = placed()
    client = Client(in_transfer, [])
    client.hear(P, said(0, 5, finish=FinishReason.HANDED_OVER))
    assert in_transfer.end() == [D, P]
    first_was_last = placed()
    Client(first_was_last, []).hear(P, said(0, 5, finish=FinishReason.LENGTH))
    assert first_was_last.end() == [D]
    assert placed(pair=False).end() == [D]


def test_whose_loss_matters_when() -> None:
    sequence = placed()
    assert sequence.needs(D)
    assert sequence.needs(P)
    sequence.started = True
    assert not sequence.needs(P)
    assert sequence.needs(D)
    waits_for_ticket = placed()
    waits_for_ticket.prefill = None
    assert waits_for_ticket.needs(P)
    assert waits_for_ticket.leg_on(P) is None

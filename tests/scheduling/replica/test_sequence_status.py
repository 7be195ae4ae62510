"""The transition table: what is allowed, and the story an illegal step tells."""

from __future__ import annotations

import pytest

from contracts.errors import InvalidTransition
from contracts.request import Request, SamplingParams
from scheduling.sequence import Sequence, Status

ALLOWED = {
    (Status.WAITING, Status.PREFILLING),
    (Status.WAITING, Status.RECEIVING),
    (Status.WAITING, Status.ENDED),
    (Status.RECEIVING, Status.DECODING),
    (Status.RECEIVING, Status.ENDING),
    (Status.PREFILLING, Status.SENDING),
    (Status.SENDING, Status.ENDING),
    (Status.SENDING, Status.ENDED),
    (Status.PREFILLING, Status.DECODING),
    (Status.PREFILLING, Status.PREEMPTED),
    (Status.PREFILLING, Status.ENDING),
    (Status.PREFILLING, Status.ENDED),
    (Status.DECODING, Status.PREEMPTED),
    (Status.DECODING, Status.ENDING),
    (Status.DECODING, Status.ENDED),
    (Status.PREEMPTED, Status.PREFILLING),
    (Status.PREEMPTED, Status.ENDED),
    (Status.ENDING, Status.ENDED),
}


def fresh() -> Sequence:
    request = Request(request_id="r1", prompt_token_ids=(1, 2), sampling=SamplingParams())
    return Sequence(request, 1.0, 16, frozenset())


@pytest.mark.parametrize("past", list(Status))
@pytest.mark.parametrize("new", list(Status))
def test_only_the_table_is_allowed(past: Status, new: Status) -> None:
    sequence = fresh()
    sequence.status = past
    if (past, new) in ALLOWED:
        sequence.move_to(new, 2.0)
        assert sequence.status is new
    else:
        with pytest.raises(InvalidTransition):
            sequence.move_to(new, 2.0)
        assert sequence.status is past


def test_an_illegal_step_tells_the_history() -> None:
    sequence = fresh()
    sequence.move_to(Status.PREFILLING, 2.0)
    sequence.move_to(Status.DECODING, 3.5)
    with pytest.raises(InvalidTransition, match=r"r1: decoding cannot become waiting .*prefilling@2.*decoding@3\.5"):
        sequence.move_to(Status.WAITING, 4.0)

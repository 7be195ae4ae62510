"""The ticket's steps, at a distance and at none, and the story an illegal one tells."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import InvalidTransition
from contracts.handoff import TicketStatus
from contracts.phase import Role
from contracts.replica_io import ClientGone
from scheduling.config import ReplicaCoreConfig
from scheduling.kv_ticket import TicketLife

Lab = Any
RESERVED, SENDING, COMMITTED, RELEASED, ABORTED = TicketStatus
ALLOWED = {
    (RESERVED, SENDING),
    (RESERVED, ABORTED),
    (SENDING, COMMITTED),
    (SENDING, ABORTED),
    (COMMITTED, RELEASED),
    (COMMITTED, ABORTED),
}


@pytest.mark.parametrize("past", list(TicketStatus))
@pytest.mark.parametrize("new", list(TicketStatus))
def test_only_the_table_is_allowed(past: TicketStatus, new: TicketStatus) -> None:
    ticket = TicketLife("r1", 1.0)
    ticket.status = past
    if (past, new) in ALLOWED:
        ticket.move_to(new, 2.0)
        assert ticket.status is new
    else:
        with pytest.raises(InvalidTransition):
            ticket.move_to(new, 2.0)
        assert ticket.status is past


def test_an_illegal_step_tells_the_history() -> None:
    ticket = TicketLife("r1", 1.0)
    ticket.move_to(SENDING, 2.5)
    with pytest.raises(InvalidTransition, match=r"r1: sending cannot become released \(reserved@1.*sending@2\.5"):
        ticket.move_to(RELEASED, 3.0)


@pytest.mark.parametrize(
    ("past", "finished", "last"),
    [
        (COMMITTED, True, RELEASED),
        (COMMITTED, False, ABORTED),
        (SENDING, True, ABORTED),
        (RELEASED, False, RELEASED),
        (ABORTED, True, ABORTED),
    ],
)
def test_how_it_closes(past: TicketStatus, finished: bool, last: TicketStatus) -> None:
    ticket = TicketLife("r1", 1.0)
    ticket.status = past
    ticket.close(2.0, finished=finished)
    assert ticket.status is last
    assert not ticket.is_open


def statuses(sequence: Any) -> list[TicketStatus]:
    return [status for status, _ in sequence.ticket.history]


@pytest.mark.parametrize("role", list(Role))
def test_inside_one_replica_the_same_steps_run(replica_lab: Any, role: Role) -> None:
    lab = replica_lab(role)
    lab.arrive("a", 10)
    sequence = lab.core.state.sequences["a"]
    assert statuses(sequence) == [RESERVED, SENDING]
    lab.step()
    assert statuses(sequence) == [RESERVED, SENDING, COMMITTED]
    lab.finish()
    assert statuses(sequence) == [RESERVED, SENDING, COMMITTED, RELEASED]


def test_a_cancel_aborts_and_a_recomputed_sequence_gets_a_new_one(replica_lab: Any) -> None:
    lab = replica_lab(num_blocks=24, config=ReplicaCoreConfig(output_reserve_quantile=0.0))
    for index in range(3):
        lab.arrive(f"short{index}", 3, 2)
        lab.run()
    for index in range(3):
        lab.arrive(f"r{index}", 20, 40)
    tickets: dict[str, list[Any]] = {f"r{index}": [] for index in range(3)}
    while lab.step() is not None:
        for request_id, sequence in lab.core.state.sequences.items():
            if sequence.ticket is not None and sequence.ticket not in tickets[request_id]:
                tickets[request_id].append(sequence.ticket)
    twice = [lives for lives in tickets.values() if len(lives) > 1]
    assert twice
    assert all([t.status for t in lives] == [ABORTED] * (len(lives) - 1) + [RELEASED] for lives in tickets.values())
    lab.arrive("gone", 10)
    sequence = lab.core.state.sequences["gone"]
    lab.send(ClientGone("gone"))
    assert statuses(sequence)[-1] is ABORTED
    lab.finish()

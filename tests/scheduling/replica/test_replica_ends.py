"""Requests that end otherwise than by finishing: the client leaves, a step raises, one row fails."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Role
from contracts.replica_io import ClientGone, Emit, RunStep
from contracts.request import FinishReason
from scheduling.config import ReplicaCoreConfig

Lab = Any


def test_a_cancel_in_flight_keeps_the_blocks_until_the_step_ended(replica_lab: Lab) -> None:
    lab = replica_lab()
    record = lab.arrive("a", 10)
    held = lab.core.state.ledger.num_blocks - lab.core.state.ledger.num_free
    assert held > 0
    actions = lab.send(ClientGone("a"))
    assert [type(action) for action in actions] == [Emit]
    assert record.finish is FinishReason.CANCELLED
    assert record.error.status == 499
    assert lab.core.state.ledger.num_blocks - lab.core.state.ledger.num_free == held  # the engine may still write
    lab.send(ClientGone("a"))  # again: harmless
    lab.step()
    lab.finish()


def test_a_cancel_between_steps_frees_the_blocks_at_once(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(max_chunk=8, min_chunk=1))
    lab.arrive("a", 30, 20)
    lab.step()
    lab.arrive("b", 24, slo=None)
    waiting = lab.core.state.sequences["b"]
    assert waiting.blocks == []
    lab.send(ClientGone("b"))
    assert "b" not in lab.core.state.sequences
    lab.finish()


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("role", [Role.ALTERNATING, Role.MIXED])
def test_a_cancel_in_any_status_harms_nobody_else(replica_lab: Lab, role: Role, steps: int) -> None:
    lab = replica_lab(role, config=ReplicaCoreConfig(max_chunk=8, min_chunk=1))
    lab.arrive("other", 20, 12)
    lab.arrive("victim", 20, 12)
    for _ in range(steps):
        lab.step()
    lab.send(ClientGone("victim"))
    lab.step()
    assert "victim" not in lab.core.state.sequences  # its blocks are free within one step
    lab.finish()
    assert lab.got["other"].finish is FinishReason.LENGTH


def test_a_failed_step_ends_its_own_sequences_only(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(max_running=2))
    for name in "abc":
        lab.arrive(name, 10)
    while len(lab.in_flight.chunks) < 2:
        lab.step()
    in_batch = {chunk.sequence_id for chunk in lab.in_flight.chunks}
    lab.engine.fail_on(lambda _: True)
    lab.step()
    lab.engine.fail_on(None)
    lab.finish()
    for name, record in lab.got.items():
        assert (record.finish is FinishReason.ERROR) == (name in in_batch)
    failed = lab.got[min(in_batch)]
    assert failed.error.status == 500
    assert "failed on demand" in failed.error.message


def test_a_failed_row_ends_one_sequence(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED)
    lab.arrive("a", 10)
    lab.arrive("b", 10)
    lab.engine.fail_rows_on(lambda chunk: chunk.sequence_id == "b")
    lab.finish()
    assert lab.got["a"].finish is FinishReason.LENGTH
    assert lab.got["b"].finish is FinishReason.ERROR


def test_a_missing_token_is_an_engine_failure_of_that_sequence(replica_lab: Lab) -> None:
    lab = replica_lab()
    record = lab.arrive("a", 10)
    step = lab.engine.step
    lab.engine.step = lambda batch: type(step(batch))(step_index=batch.step_index)
    lab.step()
    assert record.error.message == "the engine returned no token"
    lab.finish()


def test_the_next_step_stands_before_the_tokens_of_the_last(replica_lab: Lab) -> None:
    lab = replica_lab()
    lab.arrive("a", 10)
    lab.step()
    assert [type(action) for action in lab.actions[-2:]] == [RunStep, Emit]
    lab.finish()

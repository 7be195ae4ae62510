"""Giving KV away in the prefill phase runner: every layer of every chunk with a ticket is told, and no other."""

from __future__ import annotations

from contracts.batch import Batch, Chunk, StepResult
from contracts.engine import OnLayerDone
from contracts.phase import Phase
from prefill_workers.kv_giver import KVGiver
from replica.phases import Phases


class TwoLayers:
    """An engine of which only `step` is used."""

    watched = False

    def step(self, batch: Batch, on_layer_done: OnLayerDone | None = None) -> StepResult:
        self.watched = on_layer_done is not None
        for layer in range(2):
            if on_layer_done is not None:
                on_layer_done(layer)
        return StepResult(step_index=batch.step_index)


class Told:
    def __init__(self) -> None:
        self.layers: list[tuple[str, int, int]] = []

    def layer_done(self, ticket_id: str, layer: int, num_tokens: int) -> None:
        self.layers.append((ticket_id, layer, num_tokens))


def chunk(sequence_id: str, first: int, num_tokens: int) -> Chunk:
    return Chunk(sequence_id, tuple(range(num_tokens)), first, (0,), True)


def batch(phase: Phase, *chunks: Chunk) -> Batch:
    return Batch(step_index=1, phase=phase, chunks=chunks)


def test_each_layer_of_a_chunk_with_a_ticket_is_told() -> None:
    told, engine = Told(), TwoLayers()
    giver = KVGiver(told)
    phases = Phases(engine, giver)  # type: ignore[arg-type]
    giver.open("a", "ticket-a")
    giver.open("c", "ticket-c")
    phases.run(batch(Phase.PREFILL, chunk("a", 16, 10), chunk("b", 0, 5), chunk("c", 0, 7)))
    assert told.layers == [("ticket-a", 0, 26), ("ticket-c", 0, 7), ("ticket-a", 1, 26), ("ticket-c", 1, 7)]
    giver.close("a")
    giver.close("a")
    phases.run(batch(Phase.MIXED, chunk("a", 26, 1), chunk("c", 7, 1)))
    assert told.layers[4:] == [("ticket-c", 0, 8), ("ticket-c", 1, 8)]


def test_a_step_without_tickets_is_not_watched() -> None:
    engine = TwoLayers()
    giver = KVGiver(Told())
    phases = Phases(engine, giver)  # type: ignore[arg-type]
    giver.open("elsewhere", "ticket")
    phases.run(batch(Phase.PREFILL, chunk("b", 0, 5)))
    assert not engine.watched
    phases.run(batch(Phase.DECODE, chunk("b", 5, 1)))
    assert not engine.watched

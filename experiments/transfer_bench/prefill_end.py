"""Our giver with the real engine: a prompt is prefilled while its KV, or other KV, streams out of the same process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.handoff import KVTicket
from contracts.kv import Fingerprint
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.build import build_engine
from engine.config import EngineConfig
from experiments.transfer_bench.end import Answer, Shape, serve
from experiments.transfer_bench.service_end import HANDOFF_S, ServiceEnd, layout_of
from kvtransfer.events import Sent

FIRST_TOKEN = 1000


class PrefillEnd(ServiceEnd):
    """A giver whose pool is the engine's. Its prompts are all different, so nothing is cached."""

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Load `options.model` with `options.threads` threads, and start the service over its KV memory."""
        self.shape = Shape(*shape)
        self._engine = build_engine(
            EngineConfig(
                model=options["model"], threads=options["threads"], num_blocks=self.shape.num_blocks, prefault=True
            )
        )
        memory = self._engine.kv_memory
        if memory is None or memory.nbytes != self.shape.num_bytes:
            raise RuntimeError(f"the engine's KV pool has another shape: {self._engine.kv_layout}")
        self.pool = memory
        self._steps = 0
        layout = layout_of(self.shape.num_layers, self.shape.block_bytes)
        return self.start(Fingerprint(model_digest="bench", layout=layout), options)

    def prefill(self, table: list[int], num_tokens: int, ticket: Answer | None, other: list[Any] | None) -> Answer:
        """One step over a whole prompt. `ticket`: its KV goes out as it is computed. `other`: `[ticket, table]` of KV
        that is computed already and goes out meanwhile. Returns `step_s`, `step_ended_at` and what the meter says."""
        self.happenings.forget()
        self._steps += 1
        self.meter.start()
        waiting: list[str] = []
        if other is not None:
            waiting.append(self._send(other[0], other[1], ready=True))
        on_layer_done = None
        service = self._service
        if ticket is not None:
            name = self._send(ticket, table, ready=False)
            waiting.append(name)

            def on_layer_done(layer: int) -> None:
                service.layer_done(name, layer, num_tokens)

        batch = self._batch(table, num_tokens)
        began = time.monotonic()
        result = self._engine.step(batch, on_layer_done)
        ended = time.monotonic()
        if result.failed:
            raise RuntimeError(f"the step failed: {result.failed}")
        for name in waiting:
            service.commit(name, b"")
        for name in waiting:
            self.happenings.until(Sent, name, HANDOFF_S)
        return {**self.meter.stop(), "step_s": ended - began, "step_ended_at": ended}

    def close(self) -> None:
        """End the service, then the engine."""
        super().close()
        self._engine.close()

    def _send(self, ticket: Answer, table: Sequence[int], *, ready: bool) -> str:
        one = msgspec.convert(ticket, KVTicket)
        self._service.send(one, table, one.num_tokens if ready else 0)
        return one.ticket_id

    def _batch(self, table: Sequence[int], num_tokens: int) -> Batch:
        name = f"prompt{self._steps}"
        tokens = tuple(FIRST_TOKEN + (self._steps * 7919 + i * 31) % 20000 for i in range(num_tokens))
        start = SequenceStart(name, tokens, SamplingParams(temperature=0.0))
        return Batch(
            step_index=self._steps,
            phase=Phase.PREFILL,
            chunks=(Chunk(name, tokens, 0, tuple(table), samples=True),),
            started=(start,),
            ended=(f"prompt{self._steps - 1}",),
        )


if __name__ == "__main__":
    serve(PrefillEnd())

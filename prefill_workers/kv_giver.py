"""Giving KV away: which sequences go on elsewhere, and how the transfer learns of every layer as it is computed.

Nothing here waits: the engine's thread leaves a word for each layer, the transfer's own thread does the rest.
"""

from __future__ import annotations

from typing import Protocol

from contracts.batch import Batch
from contracts.engine import OnLayerDone
from contracts.first_tokens import FirstTokens, encode_first_tokens
from contracts.replica_io import CommitKV


class LayerSink(Protocol):
    """Who is told, `kvtransfer.service.TransferService` in life. Called on the engine's thread; must not block."""

    def layer_done(self, ticket_id: str, layer: int, num_tokens: int) -> None:
        """The KV of the first `num_tokens` tokens lies in memory for this layer."""
        ...


class KVGiver:
    """The open tickets of this replica's prefill side.

    `open` and `close` are called on the event loop, `watch` on the engine's thread; one dict operation each.
    """

    def __init__(self, sink: LayerSink) -> None:
        self._sink = sink
        self._tickets: dict[str, str] = {}

    def open(self, sequence_id: str, ticket_id: str) -> None:
        """From the next step on, what is computed of this sequence is given away."""
        self._tickets[sequence_id] = ticket_id

    def close(self, sequence_id: str) -> None:
        """Nothing more of this sequence is given away. Idempotent."""
        self._tickets.pop(sequence_id, None)

    def watch(self, batch: Batch) -> OnLayerDone | None:
        """What the engine is to call after each layer of `batch`; None when none of its sequences goes elsewhere."""
        going = [
            (ticket_id, chunk.start + len(chunk.token_ids))
            for chunk in batch.chunks
            if (ticket_id := self._tickets.get(chunk.sequence_id)) is not None
        ]
        if not going:
            return None
        sink = self._sink

        def on_layer_done(layer: int) -> None:
            for ticket_id, num_tokens in going:
                sink.layer_done(ticket_id, layer, num_tokens)

        return on_layer_done

    def __len__(self) -> int:
        return len(self._tickets)


def commit_payload(commit: CommitKV) -> bytes:
    """What goes with the last byte of a sequence's KV."""
    return encode_first_tokens(FirstTokens(commit.token_ids, commit.logprobs))

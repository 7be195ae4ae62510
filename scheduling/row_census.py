"""Which rows of a batch compute prompt tokens and which output tokens: what makes a silent recompute visible.

Pure. A prompt that was computed twice (preemption) or in the wrong place (a decode replica) shows in these counts.
"""

from __future__ import annotations

import msgspec

from contracts.batch import Batch


class RowCount(msgspec.Struct, frozen=True):
    """Rows of one batch. A sequence's own output tokens count as output, also when they are computed again."""

    prompt: int
    output: int


class RowCensus:
    """Knows the prompt length of every sequence in the engine; shared by all phase runners of one replica."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[str, int] = {}

    def count(self, batch: Batch) -> RowCount:
        """Count `batch`, after taking note of the sequences it starts and ends."""
        for sequence_id in batch.ended:
            self._prompt_tokens.pop(sequence_id, None)
        for start in batch.started:
            self._prompt_tokens[start.sequence_id] = len(start.prompt_token_ids)
        prompt = 0
        for chunk in batch.chunks:
            known = self._prompt_tokens.get(chunk.sequence_id, 0)
            prompt += min(len(chunk.token_ids), max(0, known - chunk.start))
        return RowCount(prompt, batch.num_tokens - prompt)

    def __len__(self) -> int:
        return len(self._prompt_tokens)

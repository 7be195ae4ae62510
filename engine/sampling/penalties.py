"""Rules that change a row of logits before anything is chosen from it.

Order (that of vLLM's sampler): logit bias, then repetition, frequency and presence penalty, then the ban of stop
tokens below `min_tokens`. Each touches only the tokens it concerns; nothing here is proportional to the vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from contracts.request import SamplingParams


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs in its output.

    Grows in place: `add_output` is O(1), and on a CPU the tensors are views of the arrays.
    """

    __slots__ = ("_counts", "_ids", "_slots")

    def __init__(self, prompt_token_ids: tuple[int, ...], output_token_ids: tuple[int, ...]) -> None:
        self._slots = {token_id: slot for slot, token_id in enumerate(dict.fromkeys(prompt_token_ids))}
        self._ids = np.fromiter(self._slots, dtype=np.int64, count=len(self._slots))
        self._counts = np.zeros(len(self._slots), dtype=np.float32)
        for token_id in output_token_ids:
            self.add_output(token_id)

    def add_output(self, token_id: int) -> None:
        """Count one more output token."""
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            spare = np.zeros(max(64, slot), dtype=np.int64)
            self._ids = np.concatenate([self._ids, spare])
            self._counts = np.concatenate([self._counts, spare.astype(np.float32)])
        self._ids[slot] = token_id
        self._counts[slot] += 1.0

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Distinct token ids of prompt and output, int64 [D], and their counts in the output, float32 [D]."""
        size = len(self._slots)
        return torch.from_numpy(self._ids[:size]).to(device), torch.from_numpy(self._counts[:size]).to(device)


def has_penalties(params: SamplingParams) -> bool:
    """Whether the request needs `TokenCounts`."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def penalize(row: torch.Tensor, params: SamplingParams, counts: TokenCounts) -> None:
    """Apply the three penalties to one row of logits [vocab], in place.

    Repetition (Keskar et al., CTRL, 2019) concerns every token of prompt and output: positive logits are divided by
    it, negative ones multiplied. Frequency and presence (OpenAI) concern output tokens only and are subtracted.
    """
    ids, occurrences = counts.tensors(row.device)
    values = row[ids]
    if params.repetition_penalty != 1.0:
        values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    values = values - params.frequency_penalty * occurrences
    row[ids] = values - params.presence_penalty * (occurrences > 0)


def add_bias(row: torch.Tensor, logit_bias: dict[int, float]) -> None:
    """Add `logit_bias` to one row of logits [vocab], in place."""
    ids = torch.tensor(list(logit_bias), dtype=torch.int64, device=row.device)
    row[ids] += torch.tensor(list(logit_bias.values()), dtype=row.dtype, device=row.device)


def ban(row: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    """Make `token_ids` impossible in one row of logits [vocab], in place."""
    row[torch.tensor(token_ids, dtype=torch.int64, device=row.device)] = -torch.inf

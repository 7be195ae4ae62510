"""Log probabilities as the OpenAI API reports them: natural logarithms of the model's own distribution.

That is the softmax of the raw logits: before penalties, bias, temperature and filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from contracts.batch import TokenLogprobs
from engine.sampling.filters import largest_ids

FLOOR = -9999.0
"""Reported instead of minus infinity, which JSON cannot carry (the value OpenAI and vLLM use)."""


def token_logprobs(logits: torch.Tensor, targets: Sequence[int], tops: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """For each row of `logits` float32 [R, vocab]: the target's log probability and those of the `tops[r]` best tokens.

    Alternatives are sorted best first, ties by token id. Rows must have a finite maximum and no NaN.
    """
    if not targets:
        return ()
    norms = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(targets, dtype=torch.int64, device=logits.device)[:, None]) - norms
    most = min(max(tops), logits.shape[1])
    best = _best(logits, norms, most) if most else [()] * len(targets)
    return tuple(
        TokenLogprobs(target, max(FLOOR, logprob), alternatives[:top])
        for target, logprob, alternatives, top in zip(targets, chosen.flatten().tolist(), best, tops, strict=True)
    )


def _best(logits: torch.Tensor, norms: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` best tokens of each row with their log probabilities."""
    # One more than asked for, to notice a tie at the last place: which of several tied ones `topk` gives is open.
    values, ids = logits.topk(min(count + 1, logits.shape[1]), dim=-1)
    result = []
    rows = zip(ids.tolist(), values.tolist(), norms.flatten().tolist(), strict=True)
    for row, (row_ids, row_values, norm) in enumerate(rows):
        pairs = list(zip(row_ids, row_values, strict=True))
        if len(pairs) > count and row_values[count - 1] == row_values[count]:
            largest = largest_ids(logits[row], values[row, count - 1], count)
            pairs = list(zip(largest.tolist(), logits[row, largest].tolist(), strict=True))
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        result.append(tuple((token_id, max(FLOOR, value - norm)) for token_id, value in pairs[:count]))
    return result

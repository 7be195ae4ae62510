"""Choosing one token at random from one row of logits: temperature, then top-k, then top-p, then min-p, then a draw.

One row at a time: a reduction over a whole batch may round differently when the batch has another shape, and a token
must not depend on what else was in the batch. Where logits tie, the lower token id counts as the likelier one, so that
top-k keeps exactly k tokens and every choice is reproducible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from contracts.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be drawn: token `ids` int64 [C], ascending, and their weights float32 [C]; the heaviest weighs 1."""

    ids: torch.Tensor | None
    weights: torch.Tensor


def choose(row: torch.Tensor, params: SamplingParams, value: float) -> int:
    """Draw a token from one row of logits [vocab] (a finite maximum, no NaN) with `value` uniform in [0, 1)."""
    return draw(filter_row(row, params), value)


def filter_row(row: torch.Tensor, params: SamplingParams) -> Candidates:
    """Apply temperature (> 0) and the three filters to one row of logits float32 [vocab]. `ids` None: all of them.

    Only values are sorted, which costs a twentieth of sorting their ids too; the smallest value that stays is then
    the threshold for the row itself.
    """
    ids = None
    values = row
    if 0 < params.top_k < len(row) or params.top_p < 1.0:
        kept = _descending(row)
        if 0 < params.top_k < len(row):
            kept = kept[: params.top_k]
        if params.top_p < 1.0:
            kept = kept[: _nucleus_size(_weights(kept, params.temperature), params.top_p)]
        ids = largest_ids(row, kept[-1], len(kept))
        values = row[ids]
    weights = _weights(values, params.temperature)
    if params.min_p > 0.0:
        likely = (weights >= params.min_p).nonzero().flatten()
        ids, weights = likely if ids is None else ids[likely], weights[likely]
    return Candidates(ids, weights)


def draw(candidates: Candidates, value: float) -> int:
    """Invert the cumulative distribution at `value` in [0, 1). A token of weight 0 is never drawn."""
    cumulative = candidates.weights.cumsum(0, dtype=torch.float64)
    total = float(cumulative[-1])
    # Strictly below the total even after rounding, so that the search ends on a token that added weight.
    target = torch.tensor(min(value * total, math.nextafter(total, 0.0)), dtype=torch.float64, device=cumulative.device)
    index = int(torch.searchsorted(cumulative, target, right=True))
    return index if candidates.ids is None else int(candidates.ids[index])


def largest_ids(row: torch.Tensor, threshold: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest values of `row` [V] in ascending order, int64 [count].

    `threshold` is the smallest of those values; where several tokens have it, the lower ids are taken.
    """
    ids = (row >= threshold).nonzero().flatten()
    surplus = len(ids) - count
    if surplus == 0:
        return ids
    keep = torch.ones(len(ids), dtype=torch.bool, device=row.device)
    keep[(row[ids] == threshold).nonzero().flatten()[-surplus:]] = False
    return ids[keep]


def _weights(values: torch.Tensor, temperature: float) -> torch.Tensor:
    return ((values - values.max()) / temperature).exp()


def _nucleus_size(weights: torch.Tensor, top_p: float) -> int:
    """How many of `weights`, sorted descending, hold the share `top_p` of all weight (Holtzman et al., 2020); not 0."""
    cumulative = weights.cumsum(0, dtype=torch.float64)
    return 1 + int((cumulative[:-1] < top_p * cumulative[-1]).sum())


def _descending(row: torch.Tensor) -> torch.Tensor:
    if row.device.type != "cpu":
        return row.sort(descending=True).values
    return torch.from_numpy(np.sort(row.numpy())).flip(0)  # vectorised: 20 times faster than torch's sort on a CPU

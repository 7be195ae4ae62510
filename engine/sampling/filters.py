"""Choosing one token at random from one row of logits: temperature, then top-k, then top-p, then min-p, then a draw.

One row at a time: a reduction over a whole batch may round differently when the batch has another shape, and a token
must not depend on what else was in the batch. Where likelihoods tie, the lower token id counts as the likelier one, so
that top-k keeps exactly k tokens and every choice is reproducible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from contracts.request import SamplingParams

_CUTOFFS = (2.0**-6, 2.0**-10, 2.0**-16)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be drawn: weights float32 [C] (not normalised) of tokens `ids` int64 [C]; None is the vocabulary."""

    weights: torch.Tensor
    ids: torch.Tensor | None = None

    def keep(self, chosen: torch.Tensor) -> Candidates:
        """The candidates at the indices `chosen` (int64)."""
        return Candidates(self.weights[chosen], chosen if self.ids is None else self.ids[chosen])


def choose(row: torch.Tensor, params: SamplingParams, value: float) -> int:
    """Draw a token from one row of logits [vocab] (a finite maximum, no NaN) with `value` uniform in [0, 1)."""
    return draw(filter_row(row, params), value)


def filter_row(row: torch.Tensor, params: SamplingParams) -> Candidates:
    """Apply temperature (> 0) and the three filters to one row of logits [vocab]."""
    candidates = Candidates(((row - row.max()) / params.temperature).exp())  # the likeliest token weighs 1
    ordered = 0 < params.top_k < len(row)
    if ordered:
        candidates = candidates.keep(best_ids(row, params.top_k))
    if params.top_p < 1.0:
        candidates = _top_p(candidates, params.top_p, ordered)
    if params.min_p > 0.0:
        candidates = candidates.keep((candidates.weights >= params.min_p).nonzero().flatten())
    return candidates


def best_ids(row: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest values of `row` [V], best first, ties by id; int64 [count]."""
    threshold = row.topk(count).values[-1]  # its indices are no use: which of several tied ones it gives is open
    ids = (row >= threshold).nonzero().flatten()
    return ids[row[ids].argsort(descending=True, stable=True)[:count]]


def _top_p(candidates: Candidates, top_p: float, ordered: bool) -> Candidates:
    """The likeliest candidates, as few as hold the share `top_p` of all weight (Holtzman et al., 2020); at least one.

    Sorting a whole vocabulary costs milliseconds on a CPU, so only tokens above a cutoff that already hold enough
    weight are sorted; the cutoff changes the cost, never the result.
    """
    needed = top_p * _total(candidates.weights)
    if not ordered:
        candidates = _heavy(candidates, needed)
        candidates = candidates.keep(candidates.weights.argsort(descending=True, stable=True))
    before = candidates.weights.cumsum(0, dtype=torch.float64) - candidates.weights
    inside = before < needed
    inside[0] = True
    return candidates.keep(inside.nonzero().flatten())


def _heavy(candidates: Candidates, needed: float) -> Candidates:
    for cutoff in _CUTOFFS:
        heavy = candidates.keep((candidates.weights >= cutoff).nonzero().flatten())
        if _total(heavy.weights) >= needed:
            return heavy
    return candidates


def _total(weights: torch.Tensor) -> float:
    return float(weights.sum(dtype=torch.float64))


def draw(candidates: Candidates, value: float) -> int:
    """Invert the cumulative distribution at `value` in [0, 1). A token of weight 0 is never drawn."""
    cumulative = candidates.weights.cumsum(0, dtype=torch.float64)
    total = float(cumulative[-1])
    # Strictly below the total even after rounding, so that the search ends on a token that added weight.
    target = torch.tensor(min(value * total, math.nextafter(total, 0.0)), dtype=torch.float64, device=cumulative.device)
    index = int(torch.searchsorted(cumulative, target, right=True))
    return index if candidates.ids is None else int(candidates.ids[index])

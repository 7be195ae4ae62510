"""Attention over the paged cache behind one protocol, so that another back end (FlashInfer) is one more class.

A back end first sees the step (`plan`), once for all layers, and returns what computes one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from engine.executor import StepInputs
from engine.kv_cache import gather_blocks

AttendLayer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(query [N, num_heads, head_dim], layer cache) -> [N, num_heads * head_dim]. The step's KV is already in the cache."""


class Attention(Protocol):
    """Causal grouped-query attention of one flattened batch."""

    def plan(self, inputs: StepInputs, dtype: torch.dtype) -> AttendLayer:
        """Work out once per step what all layers share. `dtype` is that of query and cache."""
        ...


@dataclass(frozen=True, slots=True)
class _PrefillPart:
    """One sequence with several rows. `mask` is additive [rows, context], None when nothing precedes the rows."""

    rows: slice
    table: torch.Tensor
    context: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _DecodePart:
    """Sequences with one row each, padded to the longest. `absent` [S, 1, T, 1] marks positions without a token."""

    rows: torch.Tensor
    table: torch.Tensor
    mask: torch.Tensor
    absent: torch.Tensor


class SdpaAttention:
    """`scaled_dot_product_attention` on gathered KV: correct on every device, and fast enough where prefill dominates.

    `max_gathered_tokens` bounds the padded copy that decode rows are gathered into (tokens per layer).
    """

    def __init__(self, block_size: int, max_gathered_tokens: int = 65_536) -> None:
        self._block_size = block_size
        self._max_gathered_tokens = max_gathered_tokens

    def plan(self, inputs: StepInputs, dtype: torch.dtype) -> AttendLayer:
        """Split the batch into prefill sequences and groups of decode rows of similar length."""
        start, context = inputs.query_start.tolist(), inputs.context_len.tolist()
        prefill, decode = [], []
        for sequence, length in enumerate(context):
            if start[sequence + 1] - start[sequence] > 1:
                rows = slice(start[sequence], start[sequence + 1])
                prefill.append(self._prefill_part(inputs, sequence, rows, length, dtype))
            else:
                decode.append(sequence)
        groups = self._decode_groups(decode, context)
        return _SdpaStep(prefill, [self._decode_part(inputs, group, context, dtype) for group in groups])

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _prefill_part(
        self, inputs: StepInputs, sequence: int, rows: slice, context: int, dtype: torch.dtype
    ) -> _PrefillPart:
        table = inputs.block_table[sequence : sequence + 1, : self._blocks(context)].long()
        num_rows = rows.stop - rows.start
        mask = None
        if context > num_rows:
            positions = inputs.positions[rows]
            future = torch.arange(context, device=positions.device)[None, :] > positions[:, None]
            mask = torch.zeros(num_rows, context, dtype=dtype, device=positions.device)
            mask.masked_fill_(future, float("-inf"))
        return _PrefillPart(rows, table, context, mask)

    def _decode_groups(self, sequences: list[int], context: list[int]) -> Iterator[list[int]]:
        """Longest first; a group ends when one more row would exceed the bound on the padded copy."""
        group: list[int] = []
        for sequence in sorted(sequences, key=lambda sequence: -context[sequence]):
            if group and (len(group) + 1) * context[group[0]] > self._max_gathered_tokens:
                yield group
                group = []
            group.append(sequence)
        if group:
            yield group

    def _decode_part(self, inputs: StepInputs, group: list[int], context: list[int], dtype: torch.dtype) -> _DecodePart:
        chosen = torch.tensor(group, device=inputs.block_table.device)
        longest = self._blocks(max(context[sequence] for sequence in group))
        lengths = inputs.context_len[chosen]
        absent = torch.arange(longest * self._block_size, device=chosen.device)[None, :] >= lengths[:, None]
        mask = torch.zeros(absent.shape, dtype=dtype, device=chosen.device).masked_fill_(absent, float("-inf"))
        return _DecodePart(
            rows=inputs.query_start[chosen].long(),
            table=inputs.block_table[chosen, :longest].long(),
            mask=mask[:, None, None, :],
            absent=absent[:, None, :, None],
        )


class _SdpaStep:
    """One step's plan, called once per layer."""

    def __init__(self, prefill: list[_PrefillPart], decode: list[_DecodePart]) -> None:
        self._prefill = prefill
        self._decode = decode

    def __call__(self, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(query)
        for prefill in self._prefill:
            _attend_prefill(query, cache, prefill, out)
        for decode in self._decode:
            _attend_decode(query, cache, decode, out)
        return out.view(out.shape[0], -1)


def _attend_prefill(query: torch.Tensor, cache: torch.Tensor, part: _PrefillPart, out: torch.Tensor) -> None:
    """KV heads become the batch dimension, so that grouped queries share keys without repeating them in memory."""
    rows = query[part.rows]
    num_rows, num_heads, head_dim = rows.shape
    kv_heads = cache.shape[2]
    keys, values = (side[0, :, None, : part.context] for side in gather_blocks(cache, part.table))
    shape = (kv_heads, num_heads // kv_heads, part.context, head_dim)
    grouped = rows.view(num_rows, *shape[:2], head_dim).permute(1, 2, 0, 3)
    attended = functional.scaled_dot_product_attention(
        grouped, keys.expand(shape), values.expand(shape), attn_mask=part.mask, is_causal=part.mask is None
    )
    out[part.rows] = attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)


def _attend_decode(query: torch.Tensor, cache: torch.Tensor, part: _DecodePart, out: torch.Tensor) -> None:
    """The queries of one KV head stand in the row dimension: they all see the same keys."""
    rows = query[part.rows]
    num_sequences, num_heads, head_dim = rows.shape
    keys, values = gather_blocks(cache, part.table)
    # A masked position has weight 0, but 0 * NaN is NaN: what an earlier owner of the block left must not leak in.
    values.masked_fill_(part.absent, 0)
    keys.masked_fill_(part.absent, 0)
    grouped = rows.view(num_sequences, cache.shape[2], -1, head_dim)
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=part.mask)
    out[part.rows] = attended.reshape(num_sequences, num_heads, head_dim)

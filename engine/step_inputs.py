"""From a batch (tuples of Python ints) to the tensors of one step. Runs before every step, so it is all arrays."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from contracts.batch import Batch
from contracts.errors import EngineFailure
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.executor import StepInputs

_Ints = NDArray[np.integer[Any]]


def build_step_inputs(
    batch: Batch, layout: KVLayout, num_blocks: int, spec: ModelSpec, device: torch.device
) -> StepInputs:
    """The flattened batch on `device`. Raises `EngineFailure` for a batch that would write outside the cache."""
    chunks, block_size = batch.chunks, layout.block_size
    if not chunks:
        raise EngineFailure("a step needs at least one chunk")
    counts = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    table_lengths = np.array([len(chunk.block_table) for chunk in chunks], dtype=np.int64)
    num_rows = int(counts.sum())
    tokens = np.fromiter(chain.from_iterable(chunk.token_ids for chunk in chunks), dtype=np.int64, count=num_rows)
    blocks = np.fromiter(
        chain.from_iterable(chunk.block_table for chunk in chunks), dtype=np.int32, count=int(table_lengths.sum())
    )
    context = starts + counts
    _check(counts, context, table_lengths * block_size, spec.max_context)
    _check_ids("token", tokens, spec.vocab_size)
    _check_ids("block", blocks, num_blocks)

    table = np.zeros((len(chunks), int(table_lengths.max())), dtype=np.int32)
    table[np.arange(table.shape[1]) < table_lengths[:, None]] = blocks
    query_start = np.concatenate(([0], np.cumsum(counts)))
    row_sequence = np.repeat(np.arange(len(chunks)), counts)
    positions = np.arange(num_rows) + np.repeat(starts - query_start[:-1], counts)
    slots = table[row_sequence, positions // block_size].astype(np.int64) * block_size + positions % block_size

    def put(array: _Ints, dtype: type) -> torch.Tensor:
        return torch.from_numpy(array.astype(dtype, copy=False)).to(device)

    return StepInputs(
        token_ids=put(tokens, np.int64),
        positions=put(positions, np.int32),
        row_sequence=put(row_sequence, np.int32),
        query_start=put(query_start, np.int32),
        context_len=put(context, np.int32),
        block_table=put(table, np.int32),
        slots=put(slots, np.int64),
        max_query=int(counts.max()),
        max_context=int(context.max()),
    )


def _check(
    counts: _Ints,
    context: _Ints,
    covered: _Ints,
    max_context: int,
) -> None:
    if counts.min() < 1:
        raise EngineFailure("a chunk needs at least one token")
    if (context > covered).any():
        raise EngineFailure("a block table does not cover its chunk")
    if context.max() > max_context:
        raise EngineFailure(f"position {int(context.max()) - 1} is outside the context of {max_context} tokens")


def _check_ids(what: str, ids: _Ints, bound: int) -> None:
    if ids.min() < 0 or ids.max() >= bound:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise EngineFailure(f"{what} id {wrong} is outside 0 to {bound - 1}")

"""Batches for a long profile: chunks of many sizes behind many pasts, decode rows of many counts, and both together.

Unlike the short profile at load (`scheduling.profile_plan`) no two rows share blocks: KV that is read once for all rows
of a step comes out of the processor's caches and makes decoding look cheap. So every stream is prefilled first, and
then any of its positions can be computed again, as often as is wanted: what is before them is in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.phase import Phase
from contracts.request import SamplingParams
from scheduling.step_shape import StepShape

_GREEDY = SamplingParams(temperature=0.0, max_tokens=1)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CHUNKS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_MIXES = ((2, 64), (4, 128), (8, 256), (4, 32), (2, 16))


@dataclass(frozen=True, slots=True)
class Row:
    """`count` tokens of a stream, at positions `start` and on."""

    stream: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class ProfileGrid:
    """`points` are the steps to measure, `streams` the sequences that they compute on, of `context` tokens each."""

    layout: KVLayout
    streams: int
    context: int
    max_chunk: int
    points: tuple[tuple[Row, ...], ...]

    def fill(self) -> tuple[Batch, ...]:
        """Prefills all streams. In order, first of all, with step indices from 0 on."""
        batches: list[Batch] = []
        for stream in range(self.streams):
            started = (SequenceStart(_name(stream), (0,) * self.context, _GREEDY),)
            for start in range(0, self.context, self.max_chunk):
                row = Row(stream, start, min(self.max_chunk, self.context - start))
                batches.append(self._batch(len(batches), (row,), () if start else started))
        return tuple(batches)

    def step(self, point: int, index: int) -> Batch:
        """One point as the batch with that step index. May be run again and again, in any order."""
        return self._batch(index, self.points[point], ())

    def end(self, index: int) -> Batch:
        """Ends all streams."""
        ended = tuple(_name(stream) for stream in range(self.streams))
        return Batch(step_index=index, phase=Phase.DECODE, chunks=(), ended=ended)

    def shape(self, point: int) -> StepShape:
        """What the cost model knows of a point."""
        shape = StepShape()
        for row in self.points[point]:
            if row.count == 1 and row.start > 0:
                shape.add_decodes(1, row.start + 1)
            else:
                shape.add_prefill(row.start, row.count)
        return shape

    def _batch(self, index: int, rows: tuple[Row, ...], started: tuple[SequenceStart, ...]) -> Batch:
        each = self.layout.blocks_for(self.context)
        chunks = tuple(
            Chunk(
                _name(row.stream),
                (0,) * row.count,
                row.start,
                tuple(range(row.stream * each, row.stream * each + self.layout.blocks_for(row.start + row.count))),
                True,
            )
            for row in rows
        )
        decodes = sum(row.count == 1 for row in rows)
        phase = Phase.DECODE if decodes == len(rows) else Phase.MIXED if decodes else Phase.PREFILL
        return Batch(step_index=index, phase=phase, chunks=chunks, started=started)


def profile_grid(
    layout: KVLayout, *, num_blocks: int, max_context: int, max_chunk: int, max_decodes: int, context: int = 512
) -> ProfileGrid:
    """The points that fit into so many blocks, for contexts of up to `context` tokens.

    Raises `ConfigError` when there is no room for two streams of 64 tokens.
    """
    context = min(context, max_context - 1)
    streams = min(max_decodes, _ROWS[-1], num_blocks // layout.blocks_for(max(1, context)))
    while streams < min(max_decodes, 16) and context >= 128:
        context //= 2
        streams = min(max_decodes, _ROWS[-1], num_blocks // layout.blocks_for(context))
    if streams < 2 or context < 64:
        raise ConfigError(f"{num_blocks} KV blocks and a context of {max_context} have no room for a profile")
    pasts = sorted({0, context // 4 // 16 * 16, context // 2 // 16 * 16})
    points: list[tuple[Row, ...]] = [
        (Row(0, past, count),) for past in pasts for count in _CHUNKS if count <= max_chunk and past + count <= context
    ]
    for length in (context // 8, context // 2, context - 1):
        points += [tuple(Row(stream, length - 1, 1) for stream in range(count)) for count in _ROWS if count <= streams]
    for rows, count in _MIXES:
        if rows < streams and count <= max_chunk:
            decodes = tuple(Row(stream, context // 2 - 1, 1) for stream in range(1, rows + 1))
            points += [(*decodes, Row(0, past, count)) for past in pasts[:2] if past + count <= context]
    return ProfileGrid(layout, streams, context, max_chunk, tuple(points))


def _name(stream: int) -> str:
    return f"profile-{stream}"

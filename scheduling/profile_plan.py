"""The short profile at load: which batches to run, and the step cost that their durations fit.

The batches are a correct life of a few sequences, not garbage: one prompt is prefilled in chunks of growing size behind
growing context, then sequences that share its blocks, as the prefix cache would let them, decode beside each other.
So the whole profile costs one prompt of about a thousand tokens and some decode steps.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.kv import KVLayout
from contracts.phase import Phase
from contracts.request import SamplingParams
from contracts.views import StepCost
from scheduling.slack import lower_quantile
from scheduling.step_predictor import SCALES
from scheduling.step_shape import NUM_TERMS, StepShape

_GREEDY = SamplingParams(temperature=0.0, max_tokens=1)
_RIDGE = 1e-9


def profile_plan(
    layout: KVLayout, *, num_blocks: int, max_context: int, max_chunk: int, max_decodes: int
) -> tuple[Batch, ...]:
    """Batches to run in order on a fresh engine, the first for warming up only. The last one just ends everything.

    Uses the token id 0 and blocks `0 .. num_blocks - 1`; nothing of it is needed afterwards.
    """
    size = layout.block_size
    context = min(max_context - 1, (num_blocks - 1) * size, 2 * max_chunk)
    chunks = _chunk_sizes(context, max_chunk)
    prompt = (0,) * sum(chunks)
    table = tuple(range(layout.blocks_for(len(prompt))))
    warm = SequenceStart("profile-warm-up", (0,) * chunks[0], _GREEDY)
    long = SequenceStart("profile-prompt", prompt, _GREEDY)
    batches = [_batch(0, (Chunk(warm.sequence_id, warm.prompt_token_ids, 0, table, True),), (warm,), ())]
    past = 0
    for count in chunks:
        samples = past + count == len(prompt)
        chunk = Chunk(long.sequence_id, prompt[past : past + count], past, table, samples)
        batches.append(_batch(len(batches), (chunk,), () if past else (long,), () if past else (warm.sequence_id,)))
        past += count
    ended: tuple[str, ...] = (long.sequence_id,)
    for rows, length in _decode_points(len(prompt), size, num_blocks - len(table), max_decodes):
        batch, ended = _decodes(len(batches), rows, length, ended, size, len(table))
        batches.append(batch)
    batches.append(_batch(len(batches), (), (), ended))
    return tuple(batches)


def shape_of(batch: Batch) -> StepShape:
    """The shape of a batch; a chunk of one token behind others counts as a decode."""
    shape = StepShape()
    for chunk in batch.chunks:
        if len(chunk.token_ids) == 1 and chunk.start > 0:
            shape.add_decodes(1, chunk.start + 1)
        else:
            shape.add_prefill(chunk.start, len(chunk.token_ids))
    return shape


def fit_step_cost(samples: Seq[tuple[StepShape, float]]) -> StepCost:
    """The non-negative coefficients of least squared relative error, for `(shape, duration_s)` samples.

    Exact: with six terms all 64 choices of non-zero ones can be tried. Raises `ValueError` without a usable sample.
    """
    rows = []
    for shape, duration_s in samples:
        if shape.tokens > 0 and duration_s > 0.0:
            rows.append([term * scale / duration_s for term, scale in zip(shape.terms(), SCALES, strict=True)])
    if not rows:
        raise ValueError("no step with tokens and a positive duration to fit a cost to")
    best: list[float] = [0.0] * NUM_TERMS
    best_error = float(len(rows))
    for mask in range(1, 2**NUM_TERMS):
        terms = [i for i in range(NUM_TERMS) if mask >> i & 1]
        solution = _least_squares(rows, terms)
        error = sum((1.0 - sum(row[i] * solution[i] for i in terms)) ** 2 for row in rows)
        if min(solution) >= 0.0 and error < best_error - 1e-12:
            best, best_error = solution, error
    a0, a1, b0, b1, b2, b3 = (value * scale for value, scale in zip(best, SCALES, strict=True))
    cost = StepCost(a0=a0, a1=a1, b0=b0, b1=b1, b2=b2, b3=b3)
    residuals = sorted(duration_s - shape.predict_s(cost) for shape, duration_s in samples if duration_s > 0.0)
    margin_s = max(0.0, lower_quantile(residuals, 0.95))
    return StepCost(a0=a0, a1=a1, b0=b0, b1=b1, b2=b2, b3=b3, margin_s=margin_s)


def _chunk_sizes(context: int, max_chunk: int) -> list[int]:
    """Growing chunks, twice each, that add up to `context` at most: both length and past vary."""
    sizes: list[int] = []
    size = max(1, min(16, max_chunk, context))
    while size <= max_chunk and sum(sizes) + size <= context:
        sizes += [size] if sum(sizes) + 2 * size > context else [size, size]
        size *= 4
    return sizes


def _decode_points(prompt: int, block_size: int, spare_blocks: int, max_decodes: int) -> list[tuple[int, int]]:
    """`(rows, context)` of the decode steps; a context is one token past a full block, so that blocks are shared."""
    contexts = sorted({length // block_size * block_size + 1 for length in (prompt // 4, prompt - 1)})
    rows = [count for count in (1, 2, 4, 8, 16) if count <= min(spare_blocks, max_decodes)]
    return [(count, length) for count in rows for length in contexts if length <= prompt]


def _decodes(
    index: int, rows: int, length: int, ended: tuple[str, ...], block_size: int, first_spare: int
) -> tuple[Batch, tuple[str, ...]]:
    """`rows` new sequences that share all blocks but their last, each decoding its token at `length - 1`."""
    shared = tuple(range((length - 1) // block_size))
    starts = tuple(SequenceStart(f"profile-{index}-{row}", (0,) * length, _GREEDY) for row in range(rows))
    chunks = tuple(
        Chunk(start.sequence_id, (0,), length - 1, (*shared, first_spare + row), True)
        for row, start in enumerate(starts)
    )
    return _batch(index, chunks, starts, ended), tuple(start.sequence_id for start in starts)


def _batch(index: int, chunks: tuple[Chunk, ...], started: tuple[SequenceStart, ...], ended: tuple[str, ...]) -> Batch:
    phase = Phase.PREFILL if any(len(chunk.token_ids) > 1 for chunk in chunks) else Phase.DECODE
    return Batch(step_index=index, phase=phase, chunks=chunks, started=started, ended=ended)


def _least_squares(rows: list[list[float]], terms: list[int]) -> list[float]:
    """Coefficients (zero outside `terms`) that bring `rows @ x` closest to 1, by the normal equations."""
    count = len(terms)
    matrix = [[sum(row[i] * row[j] for row in rows) for j in terms] for i in terms]
    vector = [sum(row[i] for row in rows) for i in terms]
    for k in range(count):
        matrix[k][k] += _RIDGE * (1.0 + matrix[k][k])
    for k in range(count):
        pivot = max(range(k, count), key=lambda r, k=k: abs(matrix[r][k]))  # type: ignore[misc]
        matrix[k], matrix[pivot] = matrix[pivot], matrix[k]
        vector[k], vector[pivot] = vector[pivot], vector[k]
        for r in range(k + 1, count):
            factor = matrix[r][k] / matrix[k][k]
            vector[r] -= factor * vector[k]
            for c in range(k, count):
                matrix[r][c] -= factor * matrix[k][c]
    for k in range(count - 1, -1, -1):
        vector[k] = (vector[k] - sum(matrix[k][c] * vector[c] for c in range(k + 1, count))) / matrix[k][k]
    solution = [0.0] * NUM_TERMS
    for position, term in enumerate(terms):
        solution[term] = vector[position]
    return solution

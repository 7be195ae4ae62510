"""How long one pipeline stage of a replica computes: matrix products, attention and collectives, one after another.

The linear layers of a step take `sqrt(memory^2 + compute^2)`: reading the weights once and computing every row, rounded
up to whole tiles, overlap only in part. The form was chosen because with tiles of 128 rows it gives DCP's (OSDI'26)
figures: 129 tokens take as long as 256, a batch of 128 five percent more than one of 96, and one of 160 a third more.
Attention takes reading or computing, whichever is longer, for chunks and for decode rows. A ring all-reduce after each
layer's attention and MLP moves `2 (tp-1)/tp` of the activations over a device's link, in `2 (tp-1)` steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduling.step_shape import StepShape
from simulator.hardware import Hardware
from simulator.models import Moe

_LEAST_TILE = 16


def tiled(rows: float, tile: int) -> int:
    """Rows that are computed for so many: whole tiles, below one tile the next power of two. Never decreases."""
    if rows > tile:
        return math.ceil(rows / tile) * tile
    return min(tile, max(_LEAST_TILE, 1 << (math.ceil(rows) - 1).bit_length())) if rows > 0 else 0


@dataclass(frozen=True, slots=True)
class StageTime:
    """One device's part of one stage as seconds and counts; every method tells seconds, and grows with the work.

    `read_s` and `row_s`: weights that every token passes, read once, and computed for one row; `head_read_s` and
    `head_row_s`: of the output head (0: not here), for rows that give a token. `expert_read_s` and `expert_row_s`: of
    one expert, in `moe_layers` layers. `chunk_pair_s` and `decode_pair_s`: attention of one pair of a token and a token
    of its context, in a chunk and in a decode row. `kv_s`: reading the KV of one token. `up_row_s`: making keys and
    values of one latent. `reduce_s` all-reduces one token's activations, `reduce_latency_s` is spent in each step, as
    are `launch_s` and `decode_row_s` (for each decode row) on the host. `kernels_s`: launching all kernels, beside
    which the work of earlier ones goes on. `tile`: rows.
    """

    tile: int
    read_s: float
    row_s: float
    head_read_s: float
    head_row_s: float
    chunk_pair_s: float
    decode_pair_s: float
    kv_s: float
    up_row_s: float
    reduce_s: float
    reduce_latency_s: float
    launch_s: float
    decode_row_s: float
    kernels_s: float
    moe: Moe | None
    moe_layers: int
    expert_read_s: float
    expert_row_s: float

    def step_s(self, shape: StepShape) -> float:
        """One batch through this stage."""
        tokens, decodes = shape.tokens, shape.decodes
        work_s = math.hypot(self.read_s, self.row_s * tiled(tokens, self.tile))
        if self.moe is not None:
            work_s += self._experts_s(self.moe, tokens)
        if self.head_read_s:
            work_s += math.hypot(self.head_read_s, self.head_row_s * tiled(decodes + (tokens > decodes), self.tile))
        if tokens > decodes:
            pairs = shape.past_chunk + 0.5 * shape.chunk_sq
            work_s += max(self.chunk_pair_s * pairs, self.kv_s * shape.past) + self.up_row_s * shape.past
        work_s += max(self.decode_pair_s, self.kv_s) * shape.decode_context
        work_s += self.reduce_s * tokens + self.reduce_latency_s
        return self.launch_s + self.decode_row_s * decodes + max(self.kernels_s, work_s)

    def _experts_s(self, moe: Moe, tokens: int) -> float:
        if tokens == 0:
            return 0.0
        covered = moe.covered(tokens)
        rows = covered * tiled(tokens * moe.top_k / covered, self.tile)
        return self.moe_layers * math.hypot(self.expert_read_s * covered, self.expert_row_s * rows)


def reduce_times(hardware: Hardware, tp: int, layers: int, token_bytes: float) -> tuple[float, float]:
    """Ring all-reduces, two a layer: seconds for each token, and seconds for each step whatever its size."""
    if tp == 1:
        return 0.0, 0.0
    share = 2.0 * (tp - 1) / tp
    rate = hardware.bridge_bytes_s if tp == 2 and hardware.bridge_bytes_s else hardware.link_bytes_s
    per_token = 2 * layers * share * token_bytes / (rate * hardware.link_share)
    return per_token, 2 * layers * 2 * (tp - 1) * hardware.link_latency_s

"""The long profile's batches: a life of streams that any engine accepts, whatever room there is."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.phase import Phase
from scheduling.profile_grid import profile_grid

LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=16, dtype="float32")


@pytest.mark.parametrize(("num_blocks", "max_context", "max_decodes"), [(4096, 8192, 32), (64, 512, 16), (20, 128, 4)])
def test_no_two_rows_of_a_step_share_a_block_and_all_blocks_exist(
    num_blocks: int, max_context: int, max_decodes: int
) -> None:
    grid = profile_grid(LAYOUT, num_blocks=num_blocks, max_context=max_context, max_chunk=256, max_decodes=max_decodes)
    filled = [batch for batch in grid.fill() if batch.started]
    assert len(filled) == grid.streams
    assert 2 <= grid.streams <= max_decodes
    phases = set()
    for point in range(len(grid.points)):
        batch = grid.step(point, 7)
        phases.add(batch.phase)
        blocks = [block for chunk in batch.chunks for block in chunk.block_table]
        assert len(blocks) == len(set(blocks))
        assert max(blocks) < num_blocks
        for chunk in batch.chunks:
            end = chunk.start + len(chunk.token_ids)
            assert end <= grid.context < max_context
            assert len(chunk.block_table) == LAYOUT.blocks_for(end)
        assert grid.shape(point).tokens == batch.num_tokens
    assert {Phase.PREFILL, Phase.DECODE} <= phases
    assert len(grid.end(9).ended) == grid.streams


def test_too_little_room_is_said() -> None:
    with pytest.raises(ConfigError, match="no room for a profile"):
        profile_grid(LAYOUT, num_blocks=3, max_context=8192, max_chunk=256, max_decodes=8)
    with pytest.raises(ConfigError, match="no room for a profile"):
        profile_grid(LAYOUT, num_blocks=300, max_context=32, max_chunk=256, max_decodes=8)

"""Blocks of other sizes: token by token the same, and what cannot be paired is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kv import Fingerprint, KVLayout
from kvtransfer.recut import Recut, fingerprint_difference

SIZES = [(4, 8), (8, 4), (4, 4), (2, 16), (16, 2), (1, 4)]


def layout(block_size: int) -> KVLayout:
    return KVLayout(num_layers=2, num_kv_heads=3, head_dim=5, block_size=block_size, dtype="bfloat16")


@given(st.sampled_from(SIZES), st.data())
def test_every_token_keeps_its_bytes(sizes: tuple[int, int], data: st.DataObject) -> None:
    mine, theirs = sizes
    num_tokens = data.draw(st.integers(1, 64))
    first = data.draw(st.integers(0, (num_tokens - 1) // theirs)) * theirs
    table = data.draw(st.permutations(range(64)))[: -(-num_tokens // mine)]
    memory = bytearray(np.random.default_rng(0).bytes(2 * 64 * layout(mine).block_bytes_per_layer))
    pool = np.frombuffer(memory, dtype=np.uint8).reshape(2, 64, 2, 3, mine, 10)
    recut = Recut(memoryview(memory), layout(mine), 64, theirs)
    count = -(-(num_tokens - first) // theirs)
    for layer in range(2):
        cut = recut.blocks(layer, table, first, count)
        assert cut.shape == (count, 2, 3, theirs, 10)
        assert cut.flags.c_contiguous
        for token in range(first, num_tokens):
            there = cut[(token - first) // theirs, :, :, (token - first) % theirs]
            assert np.array_equal(there, pool[layer, table[token // mine], :, :, token % mine])


def test_behind_the_table_is_nothing() -> None:
    memory = bytearray(b"\1" * 2 * 2 * layout(4).block_bytes_per_layer)
    cut = Recut(memoryview(memory), layout(4), 2, 8).blocks(0, (1,), 0, 1)
    assert cut[:, :, :, :4].all()
    assert not cut[:, :, :, 4:].any()


def test_sizes_of_which_none_divides_the_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"24.*16"):
        Recut(memoryview(bytearray(2 * layout(24).block_bytes_per_layer)), layout(24), 1, 16)


FINGERPRINT = Fingerprint(model_digest="abc", layout=layout(16))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: msgspec.structs.replace(f, model_digest="xyz"), ("model_digest", "'abc'", "'xyz'")),
        (lambda f: msgspec.structs.replace(f, parallel="tp2pp1"), ("parallel", "'tp1pp1'", "'tp2pp1'")),
        (lambda f: msgspec.structs.replace(f, numerics="int8"), ("numerics", "''", "'int8'")),
        (lambda f: msgspec.structs.replace(f, protocol=9), ("protocol", "2", "9")),
        (
            lambda f: msgspec.structs.replace(f, layout=msgspec.structs.replace(f.layout, head_dim=6)),
            ("layout.head_dim", "5", "6"),
        ),
        (
            lambda f: msgspec.structs.replace(f, layout=msgspec.structs.replace(f.layout, dtype="float16")),
            ("layout.dtype", "'bfloat16'", "'float16'"),
        ),
        (lambda f: msgspec.structs.replace(f, layout=layout(24)), ("layout.block_size", "16", "24")),
    ],
)
def test_a_difference_names_field_and_both_values(change: Callable[[Any], Any], words: tuple[str, ...]) -> None:
    other = change(FINGERPRINT)
    reason = fingerprint_difference(FINGERPRINT, other)
    assert reason is not None
    assert all(word in reason for word in words)
    assert fingerprint_difference(other, FINGERPRINT) is not None


@pytest.mark.parametrize("size", [16, 8, 32, 1])
def test_block_sizes_may_differ_where_one_divides_the_other(size: int) -> None:
    assert fingerprint_difference(FINGERPRINT, msgspec.structs.replace(FINGERPRINT, layout=layout(size))) is None

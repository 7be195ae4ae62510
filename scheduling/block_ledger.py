"""KV blocks of one replica: reference counts, a free list, and a hash-chained prefix cache with LRU eviction.

Promise: a block with a reference is never evicted or handed out. Free and used blocks always add up to the total;
a cached block that nobody refers to counts as free.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as Seq
from hashlib import blake2b

ROOT_HASH = b"\0" * 16


def chain_hash(parent: bytes, token_ids: Seq[int]) -> bytes:
    """128-bit name of a full block: its tokens and everything before it. The same on every machine and run."""
    return blake2b(parent + struct.pack(f"<{len(token_ids)}I", *token_ids), digest_size=16).digest()


def name_of(block_hash: bytes) -> int:
    """The short name by which other processes know a block (`contracts.prefixes`)."""
    return int.from_bytes(block_hash[:8], "little")


def extend_hashes(hashes: list[bytes], token_ids: Seq[int], num_tokens: int, block_size: int) -> None:
    """Append the hashes of the full blocks of `token_ids[:num_tokens]` that are not in `hashes` yet, in place."""
    parent = hashes[-1] if hashes else ROOT_HASH
    for index in range(len(hashes), num_tokens // block_size):
        parent = chain_hash(parent, token_ids[index * block_size : (index + 1) * block_size])
        hashes.append(parent)


class BlockLedger:
    """Who holds which block. Ids are `0 .. num_blocks - 1`.

    `_journal` tells how the cached content differs from when it was last taken: by hash, True for what is new. What
    came and went in between is not in it, so it never has more than twice `num_blocks` entries.
    Blocks are taken in order of their ids at first, so that what was never held needs no memory here: `_references`
    ends with the last block that was, and `_free` holds those of them that are free again.
    """

    __slots__ = ("_block_of", "_evictable", "_free", "_hash_of", "_journal", "_references", "caching", "num_blocks")

    def __init__(self, num_blocks: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.caching = caching
        self._references: list[int] = []
        self._free: list[int] = []
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._evictable: dict[int, None] = {}  # insertion order is the order of last use
        self._journal: dict[bytes, bool] = {}

    @property
    def num_free(self) -> int:
        """Blocks that could be allocated now, cached ones included."""
        return self.num_blocks - len(self._references) + len(self._free) + len(self._evictable)

    def all_references(self) -> dict[int, int]:
        """How many sequences hold each block that any holds, by its id."""
        return {block: count for block, count in enumerate(self._references) if count}

    def is_cached(self, block_hash: bytes) -> bool:
        """Whether a block with this content exists."""
        return block_hash in self._block_of

    def allocate(self, count: int) -> list[int]:
        """Take `count` fresh blocks, evicting the least recently used cached ones if need be.

        The caller has checked `num_free`; asking for more is our own bug.
        """
        assert count <= self.num_free, f"{count} blocks asked, {self.num_free} free"
        free, references = self._free, self._references
        first = max(0, len(free) - count)
        blocks = free[first:]
        blocks.reverse()
        del free[first:]
        more = min(count - len(blocks), self.num_blocks - len(references))
        if more:
            blocks += range(len(references), len(references) + more)
            references += (0,) * more
        while len(blocks) < count:
            blocks.append(self._evict())
        for block in blocks:
            references[block] = 1
        return blocks

    def match(self, hashes: Seq[bytes], limit: int) -> list[int]:
        """The cached blocks of the longest prefix of `hashes[:limit]`. Holds nothing: see `acquire`."""
        blocks: list[int] = []
        for index in range(min(limit, len(hashes))):
            block = self._block_of.get(hashes[index])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unreferenced(self, blocks: Seq[int]) -> int:
        """How many of `blocks` count as free now, and would not after `acquire`."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def acquire(self, blocks: Seq[int]) -> None:
        """Hold blocks that `match` just returned: from now on they cannot be evicted."""
        for block in blocks:
            if self._references[block] == 0:
                del self._evictable[block]
            self._references[block] += 1

    def register(self, block: int, block_hash: bytes) -> None:
        """A held block is full and correct: let others find it. A second block of the same content stays private."""
        assert self._references[block] > 0, f"block {block} is not held"
        if self.caching and block_hash not in self._block_of and block not in self._hash_of:
            self._hash_of[block] = block_hash
            self._block_of[block_hash] = block
            self._write_down(block_hash, is_new=True)

    def cached_names(self) -> list[int]:
        """The names of all blocks with known content, the oldest first."""
        return [name_of(block_hash) for block_hash in self._block_of]

    def take_journal(self) -> tuple[list[int], list[int]]:
        """The names of the blocks that came into the cache, and of those that left it, since this was last asked."""
        added = [name_of(block_hash) for block_hash, is_new in self._journal.items() if is_new]
        removed = [name_of(block_hash) for block_hash, is_new in self._journal.items() if not is_new]
        self._journal = {}
        return added, removed

    def _write_down(self, block_hash: bytes, *, is_new: bool) -> None:
        if self._journal.pop(block_hash, is_new) is is_new:
            self._journal[block_hash] = is_new

    def release(self, blocks: Seq[int]) -> None:
        """Give up one reference to each. The last block goes first, so that a chain is evicted from its end."""
        references, names = self._references, self._hash_of
        if not names:  # what has no name is found by nobody, so it is shared by nobody
            for block in blocks:
                assert references[block] == 1, f"block {block} was released twice"
                references[block] = 0
            self._free.extend(reversed(blocks))
            return
        freed = []
        for block in reversed(blocks):
            left = references[block] - 1
            assert left >= 0, f"block {block} was released twice"
            references[block] = left
            if left == 0:
                if block in names:
                    self._evictable[block] = None
                else:
                    freed.append(block)
        self._free += freed

    def _evict(self) -> int:
        block = next(iter(self._evictable))
        del self._evictable[block]
        block_hash = self._hash_of.pop(block)
        del self._block_of[block_hash]
        self._write_down(block_hash, is_new=False)
        return block

    def check(self) -> None:
        """Everything that must hold inside the ledger. Raises `AssertionError`."""
        used = {block for block, count in enumerate(self._references) if count > 0}
        assert len(self._references) <= self.num_blocks, "there are more blocks than there are"
        free = set(self._free)
        evictable = set(self._evictable)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert len(free | evictable | used) == len(free) + len(evictable) + len(used), "a block is in two states"
        assert len(free) + len(evictable) + len(used) == len(self._references), "a block is lost"
        assert all(block in self._hash_of for block in evictable), "an evictable block has no name"
        assert {b: h for h, b in self._block_of.items()} == self._hash_of, "the cache's two maps disagree"

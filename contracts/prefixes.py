"""Cached prefixes by name: what a prompt's full blocks are called, and how a replica's cache of them changes.

A name is the first 8 bytes of the block's chain hash (`scheduling.block_ledger.chain_hash`) as a little-endian number:
it stands for the block's tokens and everything before them. Two prompts that share a name share the prefix but for one
chance in 2**64, and a wrong guess costs time, never a wrong token: the replica looks at its own full hashes.
"""

from __future__ import annotations

import msgspec

MAX_NAMES = 4096
"""Names in one `PrefixChange`, added and removed together; more go with the next one."""


class PromptPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a prompt's full blocks of `block_size` tokens, first block first."""

    block_size: int
    names: tuple[int, ...]


class PrefixChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Blocks that a replica's cache holds now and did not before, and the other way round. With `restart` everything
    said before is void. First `removed`, then `added`."""

    block_size: int
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    restart: bool = False

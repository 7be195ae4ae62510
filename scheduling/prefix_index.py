"""Which replicas hold which blocks in their prefix caches, by name, and how much of a prompt that is on each.

The router's copy of what replicas reported, so it lags: a name that is stale, or shared by two different blocks (64
bits), costs time and never a wrong token, because the replica looks at its own full hashes.

Each name has one bit per replica that holds it. The replicas that hold a prompt's first k blocks are the conjunction of
k numbers, so a look-up costs one operation a block that anyone holds, and one step a replica that holds the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest

from contracts.cluster_io import PrefixesChanged
from contracts.prefixes import PrefixChange, PromptPrefix
from scheduling.block_ledger import ROOT_HASH, chain_hash, name_of
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord


class PrefixIndex:
    """Names by replica. Holds at most as many names of a replica as `change` was told that it has blocks.

    `version` grows with every change. `block_size` is that of the replica that last reported a block, None while no
    replica holds any.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._names: dict[str, set[int]] = {}
        self._bits: dict[str, int] = {}
        self._replica_of: dict[int, str] = {}
        self._block_size = 0
        self.version = 0

    def __len__(self) -> int:
        """Different names."""
        return len(self._holders)

    @property
    def block_size(self) -> int | None:
        """Tokens in a block, see the class."""
        return self._block_size if self._holders else None

    def num_names(self, replica_id: str) -> int:
        """Blocks that a replica is known to hold."""
        return len(self._names.get(replica_id, ()))

    def knows(self, name: int) -> bool:
        """Whether any replica holds this block."""
        return name in self._holders

    def heard(self, event: PrefixesChanged, known: ReplicaRecord | None) -> None:
        """A replica, which is `known` under that name now, said something. An earlier process's word is not heard."""
        if known is not None and known.identity.incarnation == event.incarnation:
            self.change(event.replica_id, event.change, known.identity.num_blocks)

    def change(self, replica_id: str, change: PrefixChange, num_blocks: int) -> None:
        """A replica with `num_blocks` blocks in all reported. What would be more than it can hold is not noted."""
        if change.restart:
            self.forget(replica_id)
        self.version += 1
        held = self._names.setdefault(replica_id, set())
        bit = self._bit_of(replica_id)
        for name in change.removed:
            if name in held:
                held.discard(name)
                self._clear(name, bit)
        for name in change.added:
            if len(held) >= num_blocks:
                break
            held.add(name)
            self._holders[name] = self._holders.get(name, 0) | bit
        if change.added:
            self._block_size = change.block_size

    def forget(self, replica_id: str) -> None:
        """A replica, or its process, is gone. Harmless for one that never reported."""
        held = self._names.pop(replica_id, None)
        if held is None:
            return
        self.version += 1
        bit = self._bits.pop(replica_id)
        del self._replica_of[bit]
        for name in held:
            self._clear(name, bit)

    def cached_tokens(self, prefix: PromptPrefix | None) -> Mapping[str, int]:
        """Tokens of the longest prefix of a prompt that each replica holds, of those that hold its first block."""
        found: dict[str, int] = {}
        if prefix is None or not prefix.names:
            return found
        alive = self._holders.get(prefix.names[0], 0)
        for position, name in enumerate(prefix.names):
            still = alive & self._holders.get(name, 0)
            if still != alive:
                self._note(alive & ~still, position * prefix.block_size, found)
                alive = still
            if not alive:
                break
        self._note(alive, len(prefix.names) * prefix.block_size, found)
        return found

    def cached_for(self, record: RequestRecord) -> Mapping[str, int]:
        """`cached_tokens` of a request's prompt, looked up again only when what replicas hold has changed."""
        if record.cached_version != self.version:
            record.cached_version = self.version
            record.cached = self.cached_tokens(record.asked.prefix)
        return record.cached

    def best(self, prefix: PromptPrefix | None, count: int) -> list[str]:
        """The `count` replicas that hold the most of a prompt, the most first; fewer when fewer hold any of it."""
        cached = self.cached_tokens(prefix)
        return nlargest(count, sorted(cached), key=lambda replica_id: cached[replica_id])

    def name(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """The names of a prompt's full blocks that any replica holds, as far as they follow each other from its start;
        None when there is none. Costs one hash a block that is held, and one more. The last token is always computed,
        so a block that it ends is never of use."""
        block_size = self.block_size
        if block_size is None:
            return None
        parent, names = ROOT_HASH, list[int]()
        for start in range(0, (len(token_ids) - 1) // block_size * block_size, block_size):
            parent = chain_hash(parent, token_ids[start : start + block_size])
            name = name_of(parent)
            if name not in self._holders:
                break
            names.append(name)
        return PromptPrefix(block_size=block_size, names=tuple(names)) if names else None

    def _note(self, bits: int, tokens: int, found: dict[str, int]) -> None:
        while bits:
            bit = bits & -bits
            found[self._replica_of[bit]] = tokens
            bits ^= bit

    def _bit_of(self, replica_id: str) -> int:
        """The replica's bit; the lowest free one for a new replica, so that numbers stay short as replicas come and
        go."""
        if replica_id not in self._bits:
            bit = 1
            while bit in self._replica_of:
                bit <<= 1
            self._bits[replica_id] = bit
            self._replica_of[bit] = replica_id
        return self._bits[replica_id]

    def _clear(self, name: int, bit: int) -> None:
        left = self._holders[name] & ~bit
        if left:
            self._holders[name] = left
        else:
            del self._holders[name]

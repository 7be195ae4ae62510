"""The random stream of one sequence: output token `i` uses value `i`, whatever else is in the batch. No torch.

A counter-based generator has no state to carry: a sequence that is preempted, or continues on another replica, goes on
where it was. SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers that flips about half of the bits. Any int is accepted."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int | None, default_seed: int, sequence_id: str) -> int:
    """The 64-bit key of a sequence's stream: from its seed, else from the replica's seed and the sequence id."""
    if seed is not None:
        return mix64(seed + _GAMMA)  # hashed, so that the streams of neighbouring seeds have nothing in common
    digest = hashlib.blake2b(f"{default_seed}:{sequence_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(key: int, index: int) -> float:
    """Value `index` (from 0) of the stream, uniform over the multiples of 2**-53 in [0, 1)."""
    return float(mix64(key + (index + 1) * _GAMMA) >> 11) * 2.0**-53

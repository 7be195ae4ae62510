"""The requests of one point: the same for every layout, of two keys, one of which asks for much more than the other."""

from __future__ import annotations

import random

import msgspec

LOADS = {"poisson": 1.0, "bursty": 2.0}
"""Name -> coefficient of variation of the gaps between arrivals (Gamma distributed; 1 is Poisson)."""
HEAVY, LIGHT = "heavy", "light"
HEAVY_SHARE = 0.8
PROMPT_TOKENS, OUTPUT_TOKENS = (64, 320), (16, 48)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when (seconds from the start), for whom, how long."""

    at_s: float
    key: str
    prompt_tokens: int
    output_tokens: int


def asked(load: str, per_s: float, seconds: float, seed: int) -> tuple[Ask, ...]:
    """What arrives within `seconds`; the first at 0. The same arguments give the same requests."""
    chance = random.Random(f"{load} {per_s} {seed}")
    shape = LOADS[load] ** -2
    at_s, found = 0.0, []
    while at_s < seconds:
        found.append(
            Ask(
                at_s=at_s,
                key=HEAVY if chance.random() < HEAVY_SHARE else LIGHT,
                prompt_tokens=chance.randint(*PROMPT_TOKENS),
                output_tokens=chance.randint(*OUTPUT_TOKENS),
            )
        )
        at_s += chance.gammavariate(shape, 1.0 / (per_s * shape))
    return tuple(found)

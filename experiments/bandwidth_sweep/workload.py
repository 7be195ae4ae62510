"""The requests of one point. The same seed gives the same arrivals and lengths, whatever the layout and the rate."""

from __future__ import annotations

import random

import msgspec

from experiments.bandwidth_sweep.options import Workload

FIRST_TOKEN_ID, NUM_TOKEN_IDS = 1000, 40_000


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when (seconds from the start), and how long."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def arrivals(workload: Workload) -> tuple[Arrival, ...]:
    """Exponential gaps, uniform lengths; the first arrives at 0."""
    chance = random.Random(workload.seed)
    at_s, found = 0.0, []
    for _ in range(workload.requests):
        found.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=chance.randint(*workload.prompt_tokens),
                output_tokens=chance.randint(*workload.output_tokens),
            )
        )
        at_s += chance.expovariate(workload.per_s)
    return tuple(found)


def prompt_ids(num_tokens: int, salt: str) -> list[int]:
    """Token ids that share no block with those of another salt."""
    chance = random.Random(salt)
    return [FIRST_TOKEN_ID + chance.randrange(NUM_TOKEN_IDS) for _ in range(num_tokens)]

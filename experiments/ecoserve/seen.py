"""What the parts found, for the reading: filled as they go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.ecoserve.scan import Found
from experiments.ecoserve.setups import Setup

Pair = tuple[Found, Found]


@dataclass(slots=True)
class Mitosis:
    """Sizes of macro instances over time, the share attained in the lowest window and in all."""

    sizes: list[list[int]]
    lowest: float
    attained: float


@dataclass(slots=True)
class Seen:
    """By set-up and system; by cost and system; by system and replicas; before and after, by system; by cluster and
    variant."""

    goodput: dict[Setup, dict[str, Found]] = field(default_factory=dict)
    hybrid: dict[tuple[str, str], Found] = field(default_factory=dict)
    scaling: dict[tuple[str, int], Found] = field(default_factory=dict)
    tightening: dict[str, Pair] = field(default_factory=dict)
    bursts: dict[str, Pair] = field(default_factory=dict)
    ablations: dict[tuple[str, str], Found] = field(default_factory=dict)
    mitosis: Mitosis | None = None

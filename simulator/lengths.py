"""How long prompts and outputs are: distributions as settings, drawn from a generator that is passed in."""

from __future__ import annotations

import math
from random import Random

import msgspec

from contracts.errors import ConfigError
from simulator.bounds import bound

_KIND = "kind"
MOST_TOKENS = 10_000_000
"""More no prompt and no answer has: each prompt is made, token by token, before anybody can refuse it."""


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="constant", tag_field=_KIND):
    """Always `tokens`."""

    tokens: int

    def __post_init__(self) -> None:
        _require(1 <= self.tokens <= MOST_TOKENS, "tokens", f"must be at least 1, at most {MOST_TOKENS}")

    @property
    def longest(self) -> int:
        """Tokens that are never exceeded."""
        return self.tokens

    def draw(self, random: Random) -> int:
        """The next length in tokens."""
        return self.tokens


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="uniform", tag_field=_KIND):
    """Any of `low` to `high` tokens."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _require(1 <= self.low <= self.high, "low", "must be at least 1 and at most high")
        _require(self.high <= MOST_TOKENS, "high", f"must be at most {MOST_TOKENS}")

    @property
    def longest(self) -> int:
        """Tokens that are never exceeded."""
        return self.high

    def draw(self, random: Random) -> int:
        """The next length in tokens."""
        return random.randint(self.low, self.high)


class LogNormal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lognormal", tag_field=_KIND
):
    """By `mean` and `median` tokens, cut at 1 and `most`."""

    mean: float
    median: float
    most: int = 4096

    def __post_init__(self) -> None:
        bound("lengths: median", self.median, 1.0, MOST_TOKENS)
        bound("lengths: mean", self.mean, self.median, MOST_TOKENS)
        _require(1 <= self.most <= MOST_TOKENS, "most", f"must be at least 1, at most {MOST_TOKENS}")

    @property
    def longest(self) -> int:
        """Tokens that are never exceeded."""
        return self.most

    def draw(self, random: Random) -> int:
        """The next length in tokens."""
        sigma = math.sqrt(2.0 * math.log(self.mean / self.median))
        return min(self.most, max(1, round(random.lognormvariate(math.log(self.median), sigma))))


class Empirical(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="empirical", tag_field=_KIND
):
    """One of `values`, each as often as it stands there."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(bool(self.values) and min(self.values) >= 1, "values", "must be one or more lengths of at least 1")
        _require(max(self.values) <= MOST_TOKENS, "values", f"must be at most {MOST_TOKENS}")

    @property
    def longest(self) -> int:
        """Tokens that are never exceeded."""
        return max(self.values)

    def draw(self, random: Random) -> int:
        """The next length in tokens."""
        return self.values[random.randrange(len(self.values))]


Lengths = Constant | Uniform | LogNormal | Empirical


def _require(holds: bool, name: str, must: str) -> None:
    if not holds:
        raise ConfigError(f"lengths: {name} {must}", param=name)

"""Settings of the chunk policies that follow the load (`scheduling.chunk_policies`)."""

from __future__ import annotations

import math

import msgspec

from scheduling.config_checks import require

_MOST_SIZES = 1024


class ChunkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in tokens, of a whole step. `dcp_greedy` and `dcp_predictive` choose among the multiples of `grain` from
    `smallest` to `largest`. Those are DCP's candidates; of its thresholds the paper gives no values, these are ours.

    Greedy: with less than `free_share` of the KV blocks free the smallest size that holds all streams; one `grain` less
    when the TPOT target is missed or more than `calm` of the TTFT target is left; one more when less than `pressed` of
    the TTFT target and more than `spare` of the TPOT target is left.

    Predictive: the rate of arriving prompt tokens is that of the last `window_s`; a prompt older than `stale_after` of
    its TTFT target is to be done before the target passes.
    """

    smallest: int = 128
    largest: int = 2048
    grain: int = 128
    free_share: float = 0.05
    calm: float = 0.75
    pressed: float = 0.5
    spare: float = 0.2
    window_s: float = 10.0
    stale_after: float = 0.25

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("smallest", "grain"):
            require(getattr(self, name) >= 1, f"chunks.{name}", "must be at least 1")
        require(self.largest >= self.smallest, "chunks.largest", "must be at least chunks.smallest")
        few = (self.largest - self.smallest) // self.grain < _MOST_SIZES
        require(few, "chunks.grain", f"must leave at most {_MOST_SIZES} sizes to choose among")
        for name in ("free_share", "calm", "pressed", "spare", "stale_after"):
            require(0.0 <= getattr(self, name) <= 1.0, f"chunks.{name}", "must be between 0 and 1")
        require(0.0 < self.window_s < math.inf, "chunks.window_s", "must be positive")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The candidates, smallest first."""
        return tuple(range(self.smallest, self.largest + 1, self.grain))

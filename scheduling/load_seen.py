"""What a replica has seen of its load lately: prompt tokens that arrived, how long a batch was under way. No policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MAX_ARRIVALS = 4096
_SHORTEST_S = 1.0
_WEIGHT = 0.2


@dataclass(slots=True)
class LoadSeen:
    """`size`: the step size in use, `landed_since` it was decided. `round_trip_s`: from the start of a step to its end,
    the latest ones counting most; 0 before the first."""

    size: int = 0
    decided: bool = False
    landed_since: int = 0
    round_trip_s: float = 0.0
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _tokens: int = 0
    _since: float | None = None

    def arrived(self, tokens: int, now: float) -> None:
        """A prompt of so many tokens came."""
        if self._since is None:
            self._since = now
        self._arrivals.append((now, tokens))
        self._tokens += tokens
        if len(self._arrivals) > MAX_ARRIVALS:
            self._forget_oldest()

    def landed(self, took_s: float) -> None:
        """A step ended that was started so long ago."""
        self.landed_since += 1
        self.round_trip_s += (took_s - self.round_trip_s) * (_WEIGHT if self.round_trip_s else 1.0)

    def arriving_per_s(self, now: float, window_s: float) -> float:
        """Prompt tokens per second over the last `window_s`, or since the first arrival if that is less long ago."""
        while self._arrivals and self._arrivals[0][0] < now - window_s:
            self._forget_oldest()
        since = now if self._since is None else self._since
        return self._tokens / min(window_s, max(now - since, _SHORTEST_S))

    def _forget_oldest(self) -> None:
        self._tokens -= self._arrivals.popleft()[1]

"""How fast bytes cross a link, from when they landed at the receiver. Pure: time comes in as an argument.

Only *back-to-back* landings tell the rate: the sender marks a put as such when another was under way as it was posted.
The time between a landing and the next marked one is time in which the link was busy, so their ratio is its rate. Of a
busy run only the tail counts (its second half): a token bucket lets the head pass faster than the link is.
"""

from __future__ import annotations

MAX_LANDINGS = 4096


class RateMeter:
    """Landings of one link."""

    def __init__(self) -> None:
        self._run: list[tuple[float, int]] = []
        self._best: list[tuple[float, int]] = []

    def landed(self, now: float, num_bytes: int, *, back_to_back: bool) -> None:
        """`num_bytes` are there since `now`."""
        if not back_to_back or not self._run:
            self._keep()
            self._run = [(now, 0)]
        else:
            self._run.append((now, num_bytes))
            if len(self._run) > MAX_LANDINGS:
                del self._run[: MAX_LANDINGS // 2]

    def take(self, min_s: float) -> tuple[int, float] | None:
        """Bytes and seconds of the tail of the longest busy run since the last `take`; None where that is shorter than
        `min_s`, and then it stays for the next time."""
        self._keep()
        found = tail(self._best)
        if found is None or found[1] < min_s:
            return None
        self._best = []
        self._run = self._run[-1:]
        return found

    def _keep(self) -> None:
        if _duration(self._run) >= _duration(self._best):
            self._best = list(self._run)


def _duration(landings: list[tuple[float, int]]) -> float:
    return landings[-1][0] - landings[0][0] if landings else 0.0


def tail(landings: list[tuple[float, int]]) -> tuple[int, float] | None:
    """Bytes and seconds of the second half (by bytes) of `(when, bytes)` landings; the first one only starts the clock.
    None where fewer than two landings, or no time, are left."""
    total = sum(num_bytes for _, num_bytes in landings[1:])
    passed = 0
    for i, (start, num_bytes) in enumerate(landings[:-1]):
        passed += num_bytes if i else 0
        if 2 * passed >= total or 2 * (i + 2) > len(landings):
            left = sum(count for _, count in landings[i + 1 :])
            duration = landings[-1][0] - start
            return (left, duration) if left and duration > 0.0 else None
    return None

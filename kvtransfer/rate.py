"""How fast bytes cross a link, from when they landed at the receiver. Pure: time comes in as an argument.

Only *back-to-back* landings tell the rate: the sender marks a put as such when another was under way as it was posted.
The time between a landing and the next marked one is time in which the link was busy, so their ratio is its rate. Of a
busy run only the tail counts (its second half): a token bucket lets the head pass faster than the link is.
"""

from __future__ import annotations

MAX_LANDINGS = 4096
MIN_PUT_BYTES = 32 << 10
"""Smaller puts tell what one of them costs, not how fast the link is."""


class RateMeter:
    """Landings of one link. Short busy runs add up until together they say enough."""

    def __init__(self) -> None:
        self._run: list[tuple[float, int]] = []
        self._bytes = 0
        self._seconds = 0.0

    def landed(self, now: float, num_bytes: int, *, back_to_back: bool) -> None:
        """`num_bytes` are there since `now`."""
        if not back_to_back or not self._run or num_bytes < MIN_PUT_BYTES:
            self._end_run()
            self._run = [(now, 0)]
        else:
            self._run.append((now, num_bytes))
            if len(self._run) > MAX_LANDINGS:
                del self._run[: MAX_LANDINGS // 2]

    def take(self, min_s: float) -> tuple[int, float] | None:
        """Bytes and seconds of the tails of all busy runs since the last `take`; None while that is less than `min_s`,
        and then they stay for the next time."""
        self._end_run()
        if self._seconds < min_s:
            return None
        found = (self._bytes, self._seconds)
        self._bytes, self._seconds = 0, 0.0
        return found

    def _end_run(self) -> None:
        found = tail(self._run)
        self._run = self._run[-1:]
        if found is not None:
            self._bytes += found[0]
            self._seconds += found[1]


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

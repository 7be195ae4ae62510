"""How long to wait after failures. No clock and no chance: both are arguments."""

from __future__ import annotations

FIRST_S = 0.2


class Backoff:
    """Doubles from `FIRST_S` up to `max_s`, each wait between half and one and a half of that."""

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._next_s = FIRST_S

    def failed(self, chance: float) -> float:
        """How long to wait now; `chance` is uniform in 0..1, so that many clients do not come back at once."""
        wait_s = self._next_s * (0.5 + chance)
        self._next_s = min(2.0 * self._next_s, self._max_s)
        return wait_s

    def worked(self) -> None:
        """Begin again with the shortest."""
        self._next_s = FIRST_S

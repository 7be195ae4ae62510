"""What was decided about the fleet itself, for `/fleet`: roles, macro instances, sizes proposed. A bounded ring."""

from __future__ import annotations

from collections import deque

from contracts.plan import FleetDecision

KEPT = 256
"""How many fleet decisions are remembered: they come a few a minute."""


class FleetDecisions:
    """The last decisions about the fleet. Each says why in one sentence and with the numbers that decided."""

    def __init__(self, capacity: int = KEPT) -> None:
        self._ring: deque[FleetDecision] = deque(maxlen=capacity)

    def note(self, at_s: float, kind: str, reason: str, replica_id: str | None = None, **numbers: float) -> None:
        """Remember one decision. `kind` is one word or two joined by `_`; `numbers` carry their unit in the name."""
        self._ring.append(
            FleetDecision(at_s=at_s, kind=kind, reason=reason, replica_id=replica_id, numbers=dict(numbers))
        )

    def newest_first(self) -> tuple[FleetDecision, ...]:
        """All that are kept."""
        return tuple(reversed(self._ring))

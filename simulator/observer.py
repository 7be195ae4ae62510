"""Who writes down what clients see, and how long a router's own doings take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from contracts.cluster_io import ProposeReplicas
from contracts.errors import ErrorInfo
from contracts.plan import Outcome
from contracts.views import ReplicaView
from simulator.bounds import SHORTEST_S, bound_all
from simulator.flight import Flight

_LONGEST_S = 3600.0


class Observer(Protocol):
    """Told by the router, as it happens."""

    def gap(self, gap_s: float, times: int = 1) -> None:
        """Seconds between two tokens of a stream, so often. A stream's first gap is `flight.first_gap_s` instead."""
        ...

    def gaps(self, gaps_s: Sequence[float], times: int = 1) -> None:
        """As `gap`, each of them."""
        ...

    def ended(self, flight: Flight, outcome: Outcome | None, error: ErrorInfo | None) -> None:
        """A request has ended, with one or the other."""
        ...

    def viewed(self, view: ReplicaView) -> None:
        """A replica joined, or has another role than before."""
        ...

    def proposed(self, proposal: ProposeReplicas) -> None:
        """The core proposes another size of the fleet."""
        ...


class RouterTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things take at the router, in seconds: `message_s` a message to or from a replica, the others as in
    `router.config.RouterConfig`: `tick_s` between two `TimePassed`, `silence_s` after which a replica is lost,
    `hello_s` (there `heartbeat_s`) from one try to reach it to the next."""

    message_s: float = 0.0005
    tick_s: float = 0.1
    silence_s: float = 3.0
    hello_s: float = 0.5

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        bound_all(self, "router.", "message_s", most=_LONGEST_S)
        bound_all(self, "router.", "tick_s", "silence_s", "hello_s", least=SHORTEST_S, most=_LONGEST_S)

"""The network as shared resources: each host has a way out and a way in, flows share both max-min fairly over time.

A flow is a stream of bytes that become available while they are computed (`supply`) and cross at the rate that the
sharing gives, never before they are available. Between two changes all rates are constant, so a run costs events per
change, not per byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.clock import Clock
from simulator.max_min import max_min_rates

BYTES_PER_GBIT = 1e9 / 8.0
_NEAR = 1.0  # bytes: less than that is rounding


@dataclass(slots=True, eq=False)
class Flow:
    """`total` bytes from one host to another. `available` of them can go, more at `supply` bytes per second; `sent`
    have gone. `queued_bytes` went within `queued_s` while others waited behind them: what tells the link's own rate.
    """

    sender: str
    receiver: str
    total: float
    on_sent: Callable[[], None]
    available: float = 0.0
    supply: float = 0.0
    sent: float = 0.0
    rate: float = 0.0
    queued_bytes: float = 0.0
    queued_s: float = 0.0
    first_at: float | None = None

    @property
    def backlog(self) -> float:
        """Available and not sent."""
        return self.available - self.sent


@dataclass(slots=True)
class Network:
    """All hosts and flows. Every change asks for one sharing at its moment, however many changes there are.

    `num_bytes` crossed so far; `busy_s` is the time during which any did.
    """

    clock: Clock
    latency_s: float = 0.0
    num_bytes: float = 0.0
    busy_s: float = 0.0
    egress: dict[str, float] = field(default_factory=dict)
    ingress: dict[str, float] = field(default_factory=dict)
    _flows: dict[int, Flow] = field(default_factory=dict)
    _at: float = 0.0
    _version: int = 0
    _asked: bool = False

    def set_host(self, name: str, egress: float, ingress: float) -> None:
        """Add a host or change its rates (bytes per second) from now on; 0: nothing gets through."""
        self._advance()
        self.egress[name] = egress
        self.ingress[name] = ingress
        self._ask()

    def start(self, sender: str, receiver: str, total: float, on_sent: Callable[[], None]) -> Flow:
        """A new flow with nothing available yet; `on_sent` is called once its last byte has left."""
        flow = Flow(sender, receiver, total, on_sent)
        self._flows[id(flow)] = flow
        return flow

    def offer(self, flow: Flow, num_bytes: float, supply: float) -> None:
        """`num_bytes` more are available at once, and from now on `supply` a second."""
        self._advance()
        flow.available = min(flow.total, flow.available + num_bytes)
        flow.supply = supply
        self._ask()

    def stop(self, flow: Flow) -> None:
        """Nothing more of it goes out. Idempotent."""
        self._advance()
        if self._flows.pop(id(flow), None) is not None:
            self._ask()

    def __len__(self) -> int:
        return len(self._flows)

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self.clock.at(self.clock.now, self._share)

    def _advance(self) -> None:
        """Bring all flows to now."""
        passed_s = self.clock.now - self._at
        self._at = self.clock.now
        if passed_s <= 0.0 or not self._flows:
            return
        moved = 0.0
        for flow in self._flows.values():
            queued = flow.backlog > _NEAR
            flow.available = min(flow.total, flow.available + flow.supply * passed_s)
            step = min(flow.rate * passed_s, flow.available - flow.sent)
            if step > 0.0:
                flow.sent += step
                moved += step
                if queued:
                    flow.queued_bytes += step
                    flow.queued_s += passed_s
        self.num_bytes += moved
        self.busy_s += passed_s if moved else 0.0

    def _share(self) -> None:
        """Rates from now on, and when the next flow runs dry or ends."""
        self._asked = False
        self._advance()
        for flow in [f for f in self._flows.values() if f.sent >= f.total - _NEAR]:
            del self._flows[id(flow)]
            flow.on_sent()
        flows = [flow for flow in self._flows.values() if flow.backlog > _NEAR or flow.supply > 0.0]
        rates = max_min_rates(
            [(flow.sender, flow.receiver) for flow in flows],
            [math.inf if flow.backlog > _NEAR else flow.supply for flow in flows],
            self.egress,
            self.ingress,
        )
        for flow, rate in zip(flows, rates, strict=True):
            flow.rate = rate
            if flow.first_at is None and rate > 0.0:
                flow.first_at = self.clock.now
        self._version += 1
        next_s = min(map(_until_change_s, flows), default=math.inf)
        if next_s < math.inf:
            self.clock.after(next_s, self._wake, self._version)

    def _wake(self, version: int) -> None:
        if version == self._version and not self._asked:
            self._share()


def _until_change_s(flow: Flow) -> float:
    """Seconds until it has no backlog any more, or has sent everything."""
    if flow.rate <= 0.0:
        return math.inf
    if flow.backlog <= _NEAR or flow.available >= flow.total - _NEAR:
        return (flow.total - flow.sent) / flow.rate
    gain = flow.rate - flow.supply
    return math.inf if gain <= 0.0 else flow.backlog / gain

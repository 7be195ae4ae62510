"""A fleet around one core whose planner is on: replicas that take each role at once, arrivals with noise."""

from __future__ import annotations

import random
from typing import Any

from contracts.cluster_io import (
    RequestEnded,
    SetRole,
    TimePassed,
    ViewReported,
)
from contracts.phase import Role
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore


class Fleet:
    """Replicas that take each role at once, around one core; requests that end at once after `output_tokens`."""

    def __init__(self, core: ClusterCore, cluster: Any, seed: int = 0, **view: Any) -> None:
        self.core, self.cluster, self.view = core, cluster, view
        self.random = random.Random(seed)
        self.changes: list[tuple[float, str, Role]] = []
        self.own: dict[str, dict[str, Any]] = {}
        self.deaf: set[str] = set()
        self.slo = Slo(ttft_s=1.0, tpot_s=0.1)
        self.now, self._arrived = 0.0, 0

    def roles(self) -> dict[str, Role]:
        return {replica.replica_id: replica.view.role for replica in self.core.snapshot(self.now).replicas}

    def run(self, seconds: float, per_s: float, prompt: int, output: int, link: float | None = None) -> None:
        """A second at a time: arrivals with noise, then time passes."""
        for _ in range(round(seconds)):
            self.now += 1.0
            for _ in range(self.random.randint(round(0.8 * per_s), round(1.2 * per_s))):
                self._request(round(prompt * self.random.uniform(0.5, 1.5)), output)
            self.tick(link)

    def run_poisson(self, seconds: float, per_s: float, prompt: int, output: int, link: float) -> None:
        """The same with arrivals and lengths as they come in life: Poisson, lognormal."""
        until, at = self.now + seconds, self.now
        while self.now < until:
            self.now += 1.0
            while (at := at + self.random.expovariate(per_s)) < self.now:
                long, much = (self.random.lognormvariate(-0.3, 0.8) for _ in range(2))
                self._request(max(1, min(8000, round(prompt * long))), max(1, round(output * much)))
            self.tick(link)

    def tick(self, link: float | None) -> None:
        """Time has passed: what is told is shown at once, unless the replica is deaf."""
        for action in self.core.handle(TimePassed(), self.now):
            if isinstance(action, SetRole):
                self.changes.append((self.now, action.replica_id, action.role))
                if action.replica_id not in self.deaf:
                    self._show(action.replica_id, action.role, link)
        for replica_id, role in self.roles().items():
            self._show(replica_id, role, link)
        assert self.core.ready(self.now) is None, self.roles()

    def _show(self, replica_id: str, role: Role, link: float | None) -> None:
        links = () if link is None else tuple(self.cluster.link(peer, link) for peer in self.roles())
        view = self.cluster.view(replica_id, role=role, links=links, **(self.view | self.own.get(replica_id, {})))
        self.core.handle(ViewReported(view), self.now)

    def _request(self, prompt: int, output: int) -> None:
        self._arrived += 1
        name = f"q{self._arrived}"
        self.core.handle(self.cluster.arrived(name, prompt_tokens=prompt, slo=self.slo), self.now)
        outcome = Outcome(ttft_s=0.1, switch_wait_s=None, tpot_s=0.01, output_tokens=output, finish="length")
        self.core.handle(RequestEnded(name, outcome), self.now)

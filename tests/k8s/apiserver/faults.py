"""Faults on demand: what an API server, its etcd or the way to it may do to a client.

POST /_fake/compact                                   etcd forgets its history: 410 for every open and resumed watch
POST /_fake/drop                                      every open watch is reset
POST /_fake/hang?on=1                                 connections stay open and say nothing, until on=0
POST /_fake/slow?s=0.5                                every answer comes so much later
POST /_fake/fail?code=&verb=&resource=&count=         the next `count` matching requests are refused so
POST /_fake/mute?on=1                                 open watches lose events from now on (until on=0)
POST /_fake/clear                                     no fault any more
GET  /_fake/requests                                  method and path of the last requests, and how many there were
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.k8s.apiserver.answers import Refusal


@dataclass(slots=True)
class _Failure:
    code: int
    verb: str | None
    resource: str | None
    left: int


@dataclass(slots=True)
class Faults:
    """What is wrong now. `epoch` counts resets: a watch of an earlier one is cut."""

    epoch: int = 0
    hanging: bool = False
    muted: bool = False
    slow_s: float = 0.0
    num_requests: int = 0
    requests: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=5000))
    _failures: list[_Failure] = field(default_factory=list)

    def note(self, method: str, path: str) -> None:
        """A request came."""
        self.num_requests += 1
        self.requests.append((method, path))

    def check(self, verb: str, resource: str) -> None:
        """Raises the `Refusal` that was asked for, if any."""
        for failure in self._failures:
            if failure.left > 0 and failure.verb in (None, verb) and failure.resource in (None, resource):
                failure.left -= 1
                raise Refusal(failure.code, f"injected {failure.code}")

    def order(self, what: str, query: Mapping[str, str]) -> None:
        """Take one order. Raises `Refusal` 404 for one that is not known."""
        match what:
            case "drop":
                self.epoch += 1
            case "hang":
                self.hanging = query["on"] == "1"
            case "mute":
                self.muted = query["on"] == "1"
            case "slow":
                self.slow_s = float(query["s"])
            case "fail":
                count = int(query.get("count", 1))
                self._failures.append(_Failure(int(query["code"]), query.get("verb"), query.get("resource"), count))
            case "clear":
                self._failures.clear()
                self.hanging, self.muted, self.slow_s = False, False, 0.0
            case other:
                raise Refusal(404, f"no fault {other}")

"""The parts of the experiment: what each measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from experiments.scale.cases import CODE, CONVERSATION
from experiments.scale.one import Case
from experiments.scale.store import Job

OURS, VIDUR, NATIVE = "ours", "Vidur", "Vidur, its C++ predictor"
MILLION = 1_000_000
FLEET = 10_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for at the command line. `requests` of the 64 replicas, `fleet_requests` of the largest fleet."""

    traces: Path
    vidur: str = ""
    requests: int = MILLION
    fleet_requests: int = MILLION
    repeats: int = 3
    quick: bool = False


def beside_vidur(asked: Asked) -> list[Job]:
    """Ours and both of Vidur's take turns."""
    cases = [
        Case(kind="vidur", replicas=replicas, num_requests=requests)
        for replicas, requests in (((1, 200), (4, 400)) if asked.quick else ((1, 1000), (16, 3000)))
    ]
    return [
        Job(who=who, case=case, number=number)
        for case in cases
        for number in range(asked.repeats)
        for who in (VIDUR, NATIVE, OURS)
    ]


def many_requests(asked: Asked) -> list[Job]:
    """64 replicas in two shards on two cores."""
    return [
        Job(who=OURS, case=Case(kind="requests", trace=trace, replicas=64, num_requests=asked.requests, shards=2))
        for trace in (CODE, CONVERSATION)
    ]


def many_replicas(asked: Asked) -> list[Job]:
    """One router over thousands of replicas."""
    sizes = [(100, 5000), (1000, 20_000)]
    if not asked.quick:
        most = asked.fleet_requests
        sizes = [(100, min(20_000, most)), (1000, min(100_000, most)), (FLEET, most)]
    return [
        Job(who=OURS, case=Case(kind="replicas", replicas=replicas, num_requests=requests, heartbeat_s=0.5))
        for replicas, requests in sizes
    ]


def memory(asked: Asked) -> list[Job]:
    """The same fleet with ten times the requests."""
    return [
        Job(who=OURS, case=Case(kind="memory", trace=CODE, replicas=8, num_requests=requests))
        for requests in ((500, 2000) if asked.quick else (1000, 10_000))
    ]


PARTS: dict[str, Callable[[Asked], list[Job]]] = {
    "vidur": beside_vidur,
    "requests": many_requests,
    "replicas": many_replicas,
    "memory": memory,
}
"""A part's name is the `kind` of its cases."""

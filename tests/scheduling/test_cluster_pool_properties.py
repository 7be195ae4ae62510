"""Random fleets of all roles with links that come and go: what must hold in the cluster core after every event."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    DispatchPrefill,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RefuseRequest,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    TimePassed,
    ViewReported,
)
from contracts.errors import HandoffFailed, InvalidRequest, Overloaded, Unavailable
from contracts.phase import Layout, Role
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import check_cluster_invariants
from scheduling.config import ClusterCoreConfig

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
ROLES = {
    "a": Role.ALTERNATING,
    "d": Role.DECODE,
    "e": Role.DECODE,
    "m": Role.MIXED,
    "p": Role.PREFILL,
    "q": Role.PREFILL,
}
ERRORS = (Overloaded("full"), Unavailable("draining"), HandoffFailed("checksum"), InvalidRequest("no"))
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"on_unavailable": "fail"},
    {"on_handoff_failure": "fail", "layout": "disaggregated"},
    {"layout": "colocated"},
)
LAYOUTS = (None, None, Layout.DISAGGREGATED, Layout.COLOCATED, Layout.PHASED)

KINDS = "aaaaakkkkfffppevvvjlrrct"
Script = list[tuple[str, int, int, float]]


def drawn(seed: int) -> Script:
    """80 events: their kinds, two numbers that draw their details, and the time that passes before each. Uniform,
    which a strategy of lists is not: it would seldom come as far as a second reservation."""
    chance = random.Random(seed)
    return [
        (chance.choice(KINDS), chance.randrange(2**16), chance.randrange(2**16), chance.random() / 2) for _ in range(80)
    ]


fleets = st.sampled_from(("pd", "pqd", "pde", "pqde", "apd", "ampd", "a", "d", "p"))


def view_changes(cluster: Any, replica: str, x: int, y: int) -> dict[str, Any]:
    """A view of one replica, drawn from two numbers; (1, 1) is idle and well linked."""
    rate = (None, 1e8, 1e5, 1e3)[x % 4]
    links = (
        cluster.link("d", rate, why_not="no route" if x % 7 == 0 else None, peer_incarnation=str(1 + y % 5 // 4)),
        cluster.link("e", 1e6, age_s=float(y % 90), spread=0.2, bytes_in_flight=y),
    )
    return {
        "role": ROLES[replica],
        "slack": (0.3, None, 0.05, -0.2, 3.0)[y % 5],
        "draining": y % 29 == 0,
        "waiting": (x - 1) % 4,
        "sending": y % 3 // 2,
        "backlog_s": ((x - 1) % 4) * 0.1,
        "free_blocks": (20, 1000, 1000, 0)[x % 4],
        "acked_submit_index": x % 5,
        "links": links[(y - 1) % 3 // 2 :] if ROLES[replica] is Role.PREFILL else (),
    }


def event_of(cluster: Any, kind: str, x: int, y: int, fleet: str, known: list[str], name: str) -> ClusterEvent:
    """An event of one kind, its details drawn from two numbers; requests are old ones, or unknown."""
    replica, incarnation = fleet[x % len(fleet)], str(1 + y % 6 // 5)
    request = known[-1 - y % min(4, len(known))] if known else "unknown"
    match kind:
        case "a":
            slo = Slo(ttft_s=(0.05, 0.5, 5.0)[y % 3], tpot_s=0.1)
            policy = (None, "fail", "colocate")[x % 3]
            asked = {"slo": slo, "num_sequences": 1 + y % 3, "layout": LAYOUTS[y % 5], "on_unavailable": policy}
            return cluster.arrived(name, (1, 50, 400, 3000)[x % 4], **asked)  # type: ignore[no-any-return]
        case "k":
            return KVReserved(request, (0, 1, 0, 2, -1)[x % 5])
        case "f":
            return FirstTokenSent(request)
        case "p":
            return PrefillFinished(request)
        case "e":
            return RequestEnded(request, DONE)
        case "v":
            return ViewReported(cluster.view(replica, incarnation, **view_changes(cluster, replica, x, y)))
        case "j":
            return cluster.joined(replica, incarnation, **view_changes(cluster, replica, x, y))  # type: ignore[no-any-return]
        case "l":
            return ReplicaLost(replica, "silent", {request: x % 50})
        case "r":
            return RequestRefused(request, replica, ERRORS[x // 7 % 4].info(), tokens_sent=x % 3)
        case "c":
            return ClientLeft(request)
        case _:
            return TimePassed()


class Watch:
    """What a router would hold against the core's actions."""

    def __init__(self, core: ClusterCore) -> None:
        self.core = core
        self.ended: Counter[str] = Counter()
        self.legs: dict[str, Dispatch] = {}
        self.sent: set[tuple[str, int]] = set()

    def saw(self, event: ClusterEvent, actions: list[ClusterAction], placed_before: set[str]) -> None:
        """Check what one event led to."""
        fleet = {replica.replica_id: replica for replica in self.core.snapshot(self.core.placement.now).replicas}
        if isinstance(event, RequestEnded | ClientLeft) and event.request_id in placed_before:
            self.ended[event.request_id] += 1
        for action in actions:
            match action:
                case RefuseRequest(request_id):
                    self.ended[request_id] += 1
                case Dispatch(request_id, plan):
                    self.legs[request_id] = action
                    self.sent = {leg for leg in self.sent if leg[0] != request_id}
                    assert (plan.layout is Layout.DISAGGREGATED) == (plan.prefill_replica_id is not None)
                    assert plan.replica_id in fleet
                    if plan.prefill_replica_id is not None:
                        links = {link.peer_id: link for link in fleet[plan.prefill_replica_id].view.links}
                        link = links[plan.replica_id]
                        assert link.why_not is None
                        assert link.peer_incarnation == fleet[plan.replica_id].incarnation
                case DispatchPrefill(request_id, sequence, replica_id):
                    assert isinstance(event, KVReserved), "a prefill leg without a reservation"
                    assert (request_id, sequence) not in self.sent, "a prefill leg sent twice"
                    assert self.legs[request_id].plan.prefill_replica_id == replica_id
                    self.sent.add((request_id, sequence))
                case CancelOn(replica_id):
                    assert replica_id in fleet, "a cancel for the dead"


def run(cluster: Any, fleet: str, setting: int, script: Script) -> list[Any]:
    """Drive a core through the script, checking as it goes; returns all actions."""
    config = ClusterCoreConfig(max_pending=3, pending_deadline_s=4.0, first_token_deadline_s=8.0, **SETTINGS[setting])
    core = ClusterCore(config)
    watch = Watch(core)
    now, known, trace = 0.0, list[str](), list[Any]()
    for name in fleet:
        core.handle(cluster.joined(name, **view_changes(cluster, name, 1, 1)), now)
    for number, (kind, x, y, after) in enumerate(script):
        now += after * (x % 3) / 4
        event = event_of(cluster, kind, x, y, fleet, known, f"r{number}")
        if kind == "a":
            known.append(f"r{number}")
        placed_before = set(core.placement.requests)
        actions = core.handle(event, now)
        trace.append(actions)
        check_cluster_invariants(core)
        watch.saw(event, actions, placed_before)
    assert all(count == 1 for count in watch.ended.values()), watch.ended
    assert set(core.placement.requests) == set(known) - set(watch.ended)
    finish(core, now)
    return trace


def finish(core: ClusterCore, now: float) -> None:
    """However it stands, time alone ends every request that does not stream, and nothing is left on any account."""
    core.handle(TimePassed(), now + 100.0)
    check_cluster_invariants(core)
    assert core.pending_count == 0
    for request_id in list(core.placement.requests):
        core.handle(RequestEnded(request_id, DONE), now + 100.0)
    assert all(replica.placed == 0 and replica.unacked == 0 for replica in core.snapshot(now + 100.0).replicas)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleet=fleets, setting=st.integers(0, len(SETTINGS) - 1), seed=st.integers(0, 2**32))
def test_both_legs_end_once_whatever_happens(cluster: Any, fleet: str, setting: int, seed: int) -> None:
    script = drawn(seed)
    assert run(cluster, fleet, setting, script) == run(cluster, fleet, setting, script)

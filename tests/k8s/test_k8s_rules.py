"""The pure decisions of the Kubernetes room: which endpoints count, who may take a lease, which pool is scaled."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from contracts.cluster_io import ProposeReplicas
from contracts.discovery import ReplicaStanding
from contracts.errors import ConfigError
from contracts.phase import Role
from k8s.access import NEEDED, Feature, needed_for
from k8s.backoff import FIRST_S, Backoff
from k8s.config import ElectionConfig, KubernetesConfig, PoolConfig, ScalingConfig
from k8s.lease_rules import LeaseView, micro_time, must_stop, released
from k8s.objects import Autoscaler, EndpointSlice, Lease, LeaseSpec, Metadata
from k8s.role_labels import due
from k8s.scaling_rules import Grow, PoolState, Refused, Shrink, belongs, choose, claims, is_empty, no_longer
from k8s.slices import endpoints_of
from scheduling.macro_config import MacroConfig

WALL = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
SCALING = ScalingConfig(cooldown_s=60.0)


def slice_of(*endpoints: dict[str, Any], ports: list[dict[str, Any]] | None = None) -> EndpointSlice:
    ports = [{"name": "data", "port": 7}, {"name": "control", "port": 5}] if ports is None else ports
    body = {"metadata": {"name": "s"}, "endpoints": list(endpoints), "ports": ports}
    return msgspec.convert(body, EndpointSlice)


def endpoint(address: str, pod: str = "", **conditions: bool) -> dict[str, Any]:
    target = {"targetRef": {"kind": "Pod", "name": pod}} if pod else {}
    return {"addresses": [address], "conditions": conditions, **target}


def test_endpoints_are_those_that_are_ready_and_stay() -> None:
    found = endpoints_of(
        [
            slice_of(endpoint("10.0.0.1", "a-0", ready=True), endpoint("10.0.0.2", "a-1", ready=False)),
            slice_of(endpoint("10.0.0.3", "a-2", ready=True, terminating=True), endpoint("10.0.0.4", "a-3")),
            slice_of(endpoint("fd00::1", "b-0", ready=True), endpoint("10.0.0.1", "a-0", ready=True)),
        ],
        "control",
    )
    assert found == {"tcp://10.0.0.1:5": "a-0", "tcp://10.0.0.4:5": "a-3", "tcp://[fd00::1]:5": "b-0"}


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([{"name": "control", "port": 5}], 5),
        ([{"name": "", "port": 6}], 6),
        ([{"port": 6}], 6),
        ([{"name": "http", "port": 6}], None),
        ([{"name": "control", "port": None}], None),
        ([], None),
    ],
)
def test_the_port_is_the_one_of_that_name_or_the_only_one(ports: list[dict[str, Any]], port: int | None) -> None:
    assert list(endpoints_of([slice_of(endpoint("1.2.3.4"), ports=ports)], "control")) == (
        [] if port is None else [f"tcp://1.2.3.4:{port}"]
    )


def test_slices_without_endpoints_or_ports_are_no_error() -> None:
    assert endpoints_of([EndpointSlice(metadata=Metadata(name="s"))], "control") == {}


def lease(holder: str | None, renewed: str = "x", seconds: int | None = 10, transitions: int | None = 3) -> Lease:
    spec = LeaseSpec(holder, seconds, "then", renewed, transitions)
    return Lease(metadata=Metadata(name="l", resource_version="7"), spec=spec)


def test_a_lease_of_another_counts_from_when_it_was_seen_to_change_by_our_clock() -> None:
    """Whatever time the other wrote, years ahead or behind."""
    view = LeaseView("me", duration_s=15.0)
    assert not view.may_take(lease("other", "2099-01-01T00:00:00.000000Z"), 100.0)
    assert not view.may_take(lease("other", "2099-01-01T00:00:00.000000Z"), 114.9)
    assert not view.may_take(lease("other", "1970-01-01T00:00:00.000000Z"), 115.1)  # renewed: counted anew
    assert not view.may_take(lease("other", "1970-01-01T00:00:00.000000Z"), 130.0)
    assert view.may_take(lease("other", "1970-01-01T00:00:00.000000Z"), 130.2)
    assert view.holder == "other"


@pytest.mark.parametrize(
    ("holder", "seconds", "wait_s"), [("other", 60, 60.0), ("other", 1, 15.0), ("other", None, 15.0)]
)
def test_the_longer_of_the_two_durations_counts(holder: str, seconds: int | None, wait_s: float) -> None:
    view = LeaseView("me", duration_s=15.0)
    held = lease(holder, seconds=seconds)
    assert not view.may_take(held, 0.0)
    assert not view.may_take(held, wait_s - 0.01)
    assert view.may_take(held, wait_s)


def test_what_is_free_or_ours_is_taken_at_once() -> None:
    view = LeaseView("me", duration_s=15.0)
    assert all(view.may_take(lease(holder), 0.0) for holder in ("", None, "me"))


def test_transitions_count_changes_of_the_holder_and_times_have_six_digits() -> None:
    view = LeaseView("me", duration_s=14.2)
    assert view.taken(None, WALL) == LeaseSpec("me", 15, "2026-01-02T03:04:05.000000Z", micro_time(WALL), 0)
    assert view.taken(lease("me"), WALL).lease_transitions == 3
    assert view.taken(lease("me"), WALL).acquire_time == "then"
    stolen = view.taken(lease("other"), WALL)
    assert (stolen.lease_transitions, stolen.acquire_time) == (4, micro_time(WALL))
    assert (released(lease("me"), WALL).holder_identity, released(lease("me"), WALL).lease_transitions) == ("", 3)


def test_leading_ends_before_anybody_else_may_begin() -> None:
    """Ours counts from before the renewing call; another's clock starts when it sees the result, which is later."""
    config = ElectionConfig()
    assert not must_stop(100.0, 100.0 + config.deadline_s - 0.01, config.deadline_s)
    assert must_stop(100.0, 100.0 + config.deadline_s, config.deadline_s)
    assert config.deadline_s < config.duration_s


@pytest.mark.parametrize("wrong", [{"deadline_s": 15.0}, {"retry_s": 4.0}, {"lease": "Bad_Name"}, {"retry_s": 0.0}])
def test_an_election_that_could_have_two_leaders_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        ElectionConfig(**wrong)
    assert (refused.value.param or "").startswith("kubernetes.election")


def pool(name: str = "p", wanted: int = 2, **fields: Any) -> PoolState:
    config = {key: fields.pop(key) for key in ("kind", "role", "min_replicas", "max_replicas") if key in fields}
    state = {"present": wanted, "uid": "u", "version": "7", "claimed_by": None, "changed_at": -1e9, **fields}
    return PoolState(config=PoolConfig(workload=name, **config), wanted=wanted, **state)


def standings(*names: str, **fields: Any) -> dict[str, ReplicaStanding]:
    values = {"incarnation": "1", "role": Role.ALTERNATING, "requests": 0, "sequences": 0, "draining": False, **fields}
    return {name: ReplicaStanding(replica_id=name, endpoint=f"tcp://{name}:5", **values) for name in names}


MORE, FEWER = ProposeReplicas(1, "busy"), ProposeReplicas(-1, "idle")


def test_a_pool_grows_and_shrinks_by_one_within_its_bounds() -> None:
    here = standings("p-0", "p-1")
    assert choose(MORE, [pool()], here, SCALING, 0.0) == Grow(pool(), 3)
    assert choose(FEWER, [pool()], here, SCALING, 0.0) == Shrink(pool(), 1, "p-1")
    assert isinstance(choose(MORE, [pool(max_replicas=2)], here, SCALING, 0.0), Refused)
    assert isinstance(choose(FEWER, [pool(min_replicas=2)], here, SCALING, 0.0), Refused)
    assert choose(FEWER, [pool()], standings("p-0"), SCALING, 0.0) == Shrink(pool(), 1, None)


def test_the_next_proposal_comes_after_the_cooldown() -> None:
    assert ScalingConfig().cooldown_s + ScalingConfig().every_s < MacroConfig().propose_every_s


def test_nothing_is_changed_during_the_cooldown_or_while_an_earlier_change_is_under_way() -> None:
    warm = pool(changed_at=0.0)
    assert isinstance(choose(MORE, [warm], {}, SCALING, 59.9), Refused)
    assert choose(MORE, [warm], {}, SCALING, 60.0) == Grow(warm, 3)
    assert isinstance(choose(MORE, [pool(present=1)], {}, SCALING, 0.0), Refused)


def test_what_an_autoscaler_claims_is_left_alone_and_that_is_said_loudly() -> None:
    """Two that scale one workload undo each other for ever."""
    body = {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "StatefulSet", "name": "p"}}}
    assert claims([msgspec.convert(body, Autoscaler)]) == {("StatefulSet", "p"): "h"}
    refused = choose(MORE, [pool(claimed_by="h", max_replicas=2)], {}, SCALING, 0.0)
    assert isinstance(refused, Refused)
    assert refused.loud
    assert "HorizontalPodAutoscaler h scales StatefulSet p" in refused.reason
    # another pool that may grow does so instead
    assert choose(MORE, [pool(claimed_by="h"), pool("q")], {}, SCALING, 0.0) == Grow(pool("q"), 3)


def test_the_pool_of_the_scaled_role_is_meant_and_of_several_the_emptiest() -> None:
    mixed = pool("m", role=Role.MIXED)
    assert choose(MORE, [mixed, pool("p", 4)], {}, SCALING, 0.0) == Grow(pool("p", 4), 5)
    assert choose(MORE, [pool("p", 4), pool("q", 3)], {}, SCALING, 0.0) == Grow(pool("q", 3), 4)
    assert choose(FEWER, [pool("p", 4), pool("q", 3)], {}, SCALING, 0.0) == Shrink(pool("p", 4), 3, None)
    # whose replicas took that role at run time counts as well
    assert choose(MORE, [mixed], standings("m-0"), SCALING, 0.0) == Grow(mixed, 3)
    # and who can be spared best names its pool
    spared = ProposeReplicas(-1, "idle", "q-0")
    assert choose(spared, [pool("p", 4), pool("q", 3)], {}, SCALING, 0.0) == Shrink(pool("q", 3), 2, None)


def test_a_deployment_gives_up_the_one_that_can_be_spared_or_has_least_to_do() -> None:
    names = ("d-5f6b7-abcde", "d-5f6b7-fghij")
    deployment = pool("d", kind="Deployment")
    busy = standings(names[0], sequences=3) | standings(names[1], sequences=1) | standings("other-0")
    assert choose(FEWER, [deployment], busy, SCALING, 0.0) == Shrink(deployment, 1, names[1])
    spared = ProposeReplicas(-1, "idle", names[0])
    assert choose(spared, [deployment], busy, SCALING, 0.0) == Shrink(deployment, 1, names[0])


@pytest.mark.parametrize(
    ("kind", "name", "its"),
    [
        ("StatefulSet", "p-0", True),
        ("StatefulSet", "p-12", True),
        ("StatefulSet", "p-x", False),
        ("StatefulSet", "p-q-0", False),
        ("StatefulSet", "pp-0", False),
        ("Deployment", "p-5f6b7-abcde", True),
        ("Deployment", "p-0", False),
    ],
)
def test_pods_belong_to_a_workload_by_name(kind: Any, name: str, its: bool) -> None:
    assert belongs(name, PoolConfig(workload="p", kind=kind)) is its


def test_a_pool_is_left_as_it_is_when_what_was_decided_is_no_longer_so() -> None:
    shrink = Shrink(pool(), 1, "p-1")
    assert no_longer(shrink, pool(), -1.0, SCALING) is None
    assert no_longer(shrink, pool(), SCALING.keep_s, SCALING) is None
    for found, late_s, told in (
        (pool(claimed_by="hpa-p"), 0.0, "hpa-p scales"),
        (pool("p", 3), 0.0, "somebody made it 3 pods"),
        (pool(), SCALING.keep_s + 1.0, "not be done in time"),
    ):
        refused = no_longer(shrink, found, late_s, SCALING)
        assert refused is not None
        assert told in refused.reason
        assert refused.loud is (found.claimed_by is not None)


def test_a_replica_has_left_when_it_is_gone_or_drained_and_empty() -> None:
    assert is_empty("a", {})
    assert is_empty(None, standings("a"))
    assert not is_empty("a", standings("a"))
    assert not is_empty("a", standings("a", draining=True, sequences=1))
    assert not is_empty("a", standings("a", draining=True, requests=1))
    assert is_empty("a", standings("a", draining=True))


def test_labels_are_written_once_for_each_process_and_role() -> None:
    done = {"a": ("1", Role.ALTERNATING), "gone": ("1", Role.MIXED)}
    here = standings("a", "b", "c") | standings("d", role=Role.DECODE)
    assert [standing.replica_id for standing in due(here, done, 2)] == ["b", "c"]
    assert done == {"a": ("1", Role.ALTERNATING)}
    done["a"] = ("0", Role.ALTERNATING)
    assert [standing.replica_id for standing in due(here, done, 9)] == ["a", "b", "c", "d"]


def test_waits_double_up_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(1.0)
    assert [backoff.failed(0.5) for _ in range(5)] == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0])
    assert (backoff.failed(0.0), backoff.failed(1.0)) == (0.5, 1.5)
    backoff.worked()
    assert backoff.failed(0.5) == FIRST_S


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (KubernetesConfig, {"selector": ""}),
        (KubernetesConfig, {"watch_s": 0.0}),
        (PoolConfig, {"workload": "Bad_Name"}),
        (PoolConfig, {"workload": "p", "min_replicas": 3, "max_replicas": 2}),
        (ScalingConfig, {"enabled": True}),
        (ScalingConfig, {"pools": (PoolConfig(workload="p"), PoolConfig(workload="p"))}),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        kind(**wrong)
    assert (refused.value.param or "").startswith("kubernetes.")


def test_a_router_that_only_discovers_needs_to_read_slices_and_nothing_else() -> None:
    assert {(access.resource, access.verb) for access in needed_for(Feature.DISCOVERY)} == {
        ("endpointslices", "list"),
        ("endpointslices", "watch"),
    }
    assert needed_for(*Feature) == set(NEEDED)
    assert not any(access.verb in ("*", "delete") or access.resource == "*" for access in NEEDED)

"""The shortlist of a large fleet: in order after any events, and as good as a look at all replicas."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.cluster_io import Dispatch, ReplicaDrainRequested, ReplicaLost, TimePassed, ViewReported
from contracts.phase import Role
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_shortlist import may_take
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_index import LIST_ALL
from scheduling.plan_choice import plan_request
from scheduling.plan_inputs import Ask, Candidate

SIZE = 40
ROLES = st.sampled_from([Role.ALTERNATING, Role.MIXED])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["view", "view", "arrive", "lose", "drain"]),
        st.integers(0, SIZE - 1),
        st.floats(0.0, 3.0),
        st.integers(0, 1000),
    ),
    max_size=60,
)


def _grown(cluster: Any, role: Role, steps: list[tuple[str, int, float, int]]) -> ClusterCore:
    core = ClusterCore(ClusterCoreConfig())
    for index in range(SIZE):
        core.handle(cluster.joined(f"r{index:02d}", role=role), 0.0)
    for number, (kind, index, slack_s, free) in enumerate(steps):
        name, now = f"r{index:02d}", 0.001 * number
        if kind == "view":
            view = cluster.view(name, slack=slack_s, role=role, free_blocks=free, backlog_s=slack_s / 3)
            core.handle(ViewReported(view), now)
        elif kind == "arrive":
            core.handle(cluster.arrived(f"q{number}", 20 + free), now)
        elif kind == "lose":
            core.handle(ReplicaLost(name, "gone"), now)
        else:
            core.handle(ReplicaDrainRequested(name), now)
    return core


@settings(max_examples=40, deadline=None)
@given(role=ROLES, steps=STEPS, prompt=st.integers(16, 2000))
def test_who_is_not_listed_has_no_more_room_than_who_is(
    cluster: Any, role: Role, steps: list[tuple[str, int, float, int]], prompt: int
) -> None:
    core = _grown(cluster, role, steps)
    place = core.placement
    every = place.fleet.loads(place.now, 64)
    few = place.fleet.loads(place.now, 64, frozenset(), ())
    asked = cluster.arrived("last", prompt)
    ask = Ask(now=place.now, prompt_tokens=prompt, num_sequences=1, reserve_tokens=64, slo=asked.slo, waited_s=0.0)
    known, best = plan_request(ask, few, place.config), plan_request(ask, every, place.config)
    listed = {load.replica_id for load in (*few.alternating, *few.mixed)}
    assert listed <= {load.replica_id for load in (*every.alternating, *every.mixed)}
    if isinstance(best, Candidate) and best.meets and best.load.free_blocks >= 200 and best.load.slack_s is None:
        assert isinstance(known, Candidate)
        assert known.meets
    if isinstance(known, Candidate):
        assert isinstance(best, Candidate)
        assert best.meets >= known.meets


@settings(max_examples=20, deadline=None)
@given(role=ROLES, steps=STEPS)
def test_a_shortlist_is_short_and_holds_open_replicas(
    cluster: Any, role: Role, steps: list[tuple[str, int, float, int]]
) -> None:
    place = _grown(cluster, role, steps).placement
    few = place.fleet.loads(place.now, 64, frozenset(), ())
    listed = [*few.alternating, *few.mixed]
    if place.fleet.num_open > LIST_ALL:
        assert any(load.closed is None for load in listed)
        assert len(few.mixed) <= LIST_ALL
        assert len(few.rings) <= 4


def test_a_replica_with_the_prompt_cached_is_always_listed(cluster: Any) -> None:
    core = _grown(cluster, Role.MIXED, [("view", index, 0.1 * index, 900) for index in range(SIZE)])
    place = core.placement
    names = [f"r{index:02d}" for index in range(SIZE)]
    plain = {load.replica_id for load in place.fleet.loads(place.now, 64, frozenset(), ()).mixed}
    cold = next(name for name in names if name not in plain)
    warm = {load.replica_id for load in place.fleet.loads(place.now, 64, frozenset(), (cold,)).mixed}
    assert warm == plain | {cold}


def test_requests_go_to_all_replicas_of_a_large_fleet(cluster: Any) -> None:
    core = _grown(cluster, Role.MIXED, [])
    sent = [core.handle(cluster.arrived(f"q{number}", 100), 0.0) for number in range(SIZE)]
    went = {action.plan.replica_id for actions in sent for action in actions if isinstance(action, Dispatch)}
    assert len(went) == SIZE


@settings(max_examples=40, deadline=None)
@given(role=ROLES, steps=STEPS, prompt=st.integers(16, 3000), waited_s=st.floats(0.0, 2.0))
def test_a_request_that_a_replica_may_not_take_is_not_planned_there(
    cluster: Any, role: Role, steps: list[tuple[str, int, float, int]], prompt: int, waited_s: float
) -> None:
    place = _grown(cluster, role, steps).placement
    every = place.fleet.loads(place.now, 64)
    slo = cluster.arrived("last").slo
    ask = Ask(now=place.now, prompt_tokens=prompt, num_sequences=1, reserve_tokens=64, slo=slo, waited_s=waited_s)
    found = plan_request(ask, every, place.config)
    if isinstance(found, Candidate):
        assert may_take(ask, found.load, place.config)


def test_what_no_likely_replica_takes_goes_to_an_unlikely_one_within_about_a_second(cluster: Any) -> None:
    """The roomiest by slack are all without memory: they are listed, and the one that has some is not."""
    core = ClusterCore(ClusterCoreConfig())
    rich = f"r{SIZE // 2:02d}"
    for index in range(SIZE):
        core.handle(cluster.joined(f"r{index:02d}", role=Role.ALTERNATING), 0.0)

    def report(now: float) -> None:
        for index in range(SIZE):
            name = f"r{index:02d}"
            slack, free = (0.6, 500) if name == rich else (3.0, 2)
            view = cluster.view(name, slack=slack, role=Role.ALTERNATING, free_blocks=free)
            actions.extend(core.handle(ViewReported(view), now))

    actions: list[Any] = []
    report(0.1)
    actions += core.handle(cluster.arrived("q", 100), 0.2)
    for tenth in range(3, 16):
        actions += core.handle(TimePassed(), tenth / 10)
    assert [action.plan.replica_id for action in actions if isinstance(action, Dispatch)] == [rich]

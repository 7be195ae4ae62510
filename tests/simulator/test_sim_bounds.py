"""Every number of a scenario has bounds: what is none, or beyond all sense, is refused by its name before a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.arrivals import Diurnal, Gamma, Steps
from simulator.bounds import bound
from simulator.changes import Add, Freeze, Kill, RestartRouter, SetLink
from simulator.cost import Apart, Fitted, Table
from simulator.hardware import hardware
from simulator.lengths import LogNormal
from simulator.models import model
from simulator.observer import RouterTimes
from simulator.run import simulate
from simulator.scenario import Group, KVShape, Scaling, Scenario
from simulator.scenarios import L20_34B, small
from simulator.traces import Trace
from simulator.workload import RequestClass, SharedPrefixes, Workload

GROUP = Group(role=Role.MIXED, cost=L20_34B)
TABLE = Table(points=((1, 0.1), (2, 0.2)))
LATENT, EXPERTS = model("deepseek-v3").mla, model("deepseek-v3").moe
assert LATENT is not None and EXPERTS is not None  # noqa: PT018
WHOLE: list[msgspec.Struct] = [
    Scenario(fleet=(GROUP,)),
    GROUP,
    KVShape(),
    Scaling(),
    RouterTimes(),
    Workload(),
    RequestClass(),
    SharedPrefixes(count=1, tokens=1),
    Gamma(rate=1.0),
    Diurnal(rate=1.0),
    Steps(rates=(1.0,), step_s=1.0),
    LogNormal(mean=2.0, median=1.0),
    Trace(path="t.csv"),
    L20_34B,
    TABLE,
    Apart(of=L20_34B),
    Kill(at_s=1.0, replica_id="mixed-0"),
    Freeze(at_s=1.0, replica_id="mixed-0", for_s=1.0),
    SetLink(at_s=1.0, bytes_per_s=1.0),
    Add(at_s=1.0),
    RestartRouter(at_s=1.0),
    hardware("l20"),
    model("qwen3-8b"),
    LATENT,
    EXPERTS,
]
NUMBERS = [
    pytest.param(whole, name, id=f"{type(whole).__name__}.{name}")
    for whole in WHOLE
    for name in whole.__struct_fields__
    if isinstance(getattr(whole, name), int | float) and not isinstance(getattr(whole, name), bool) and name != "group"
]
"""All but the number of a group, which is one of a fleet's."""


@pytest.mark.parametrize(("whole", "name"), NUMBERS)
def test_no_number_is_endless_or_none(whole: Any, name: str) -> None:
    whole_number = isinstance(getattr(whole, name), int)
    values: list[float] = [10**400, -(10**400)] if whole_number else [math.nan, math.inf, -math.inf, 1e300, -1.0]
    for value in values:
        with pytest.raises(ConfigError) as refused:
            msgspec.structs.replace(whole, **{name: value})
        assert "\n" not in refused.value.message
        assert len(refused.value.message) < 250


def test_a_class_has_targets_that_can_be_met() -> None:
    for value in (0.0, -1.0, math.nan, math.inf, 1e300):
        for slo in (Slo(ttft_s=value), Slo(tpot_s=value)):
            with pytest.raises(ConfigError, match=r"slo\.t"):
                RequestClass(slo=slo)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"heartbeat_s": 1e-6}, "heartbeat_s must be at least 0.001, at most 3600, but is 1e-06"),
        ({"latency_s": 1e300}, "latency_s must not be negative, nor above 60, but is"),
        ({"start_s": 1e300}, "start_s must not be negative, nor above 3600, but is"),
        ({"warmup_s": 61.0}, "warmup_s is 61, and requests arrive until 61 s: none would be counted"),
        ({"workload": Workload(num_requests=5, arrivals=Gamma(rate=1e-300))}, "5 requests would take about 5e.300 s"),
        ({"workload": Workload(num_requests=5, arrivals=Steps(rates=(0.0, 1e-9), step_s=9.0))}, "5 requests would"),
    ],
)
def test_what_would_go_on_for_ever_or_say_nothing_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Scenario(fleet=(GROUP,), **settings)


SLOW = Table(points=((1, 3000.0), (2, 3600.0)), context_s=3599.0)


@pytest.mark.parametrize("cost", [Fitted(a0=3000.0, a1=700.0), SLOW])
def test_a_step_that_nobody_waits_for_is_no_step(cost: Fitted | Table) -> None:
    for name in ("cost", "crowded", "believed") if isinstance(cost, Fitted) else ("cost", "crowded"):
        with pytest.raises(ConfigError, match=f"fleet.{name}: a step of one token takes"):
            msgspec.structs.replace(GROUP, **{name: cost})


def test_the_messages_of_bounds() -> None:
    for least, most, above, says in (
        (0.0, 1.0, False, "be between 0 and 1"),
        (0.0, 1.0, True, "lie above 0 and not above 1"),
        (0.0, 2.0, True, "be positive, at most 2"),
        (1, 2000, False, "be at least 1, at most 2,000"),
    ):
        with pytest.raises(ConfigError) as refused:
            bound("it", 10**400, least, most, above=above)
        assert refused.value.message == f"it must {says}, but is about 10^400"
        bound("it", most, least, most, above=above)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(small(mixed=1, rate=1.0, duration_s=3.0, cost=Fitted(a0=0.02, a1=3e-4, b1=1.0)), id="one step"),
        pytest.param(
            msgspec.structs.replace(
                small(prefill=1, decode=2, duration_s=3.0),
                changes=(Freeze(at_s=3.0, replica_id="decode-0", for_s=1e7),),
            ),
            id="frozen",
        ),
    ],
)
def test_a_replica_that_stands_still_for_ever_ends_no_run_in_a_fault(scenario: Scenario) -> None:
    """What it holds is nobody's any more: the report is that of requests that have all ended."""
    report = simulate(msgspec.structs.replace(scenario, heartbeat_s=1.0))
    assert report.arrived == report.finished + sum(report.refused.values())
    assert report.usual.attained <= report.finished / report.arrived


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ReplicaCoreConfig(link_probe_s=1e300), "link_probe_s must be at most"),
        (lambda: ReplicaCoreConfig(kv_lease_max_s=math.nan), "kv_lease_max_s must be positive"),
        (lambda: ClusterCoreConfig(lease_s=1e-300), "lease_s must be at least 0.001"),
        (lambda: ClusterCoreConfig(pending_deadline_s=math.inf), "pending_deadline_s must be at most"),
        (lambda: Scaling(most=3, least=5), "scaling: at most 3 replicas, but at least 5"),
        (lambda: msgspec.structs.replace(GROUP, name="a\nb"), "fleet.name must be of printable characters"),
        (lambda: RequestClass(name="\x1b[31m"), "workload.classes.name must be of printable characters"),
        (lambda: RequestClass(key="k" * 201), "workload.classes.key must be of printable characters, at most 200"),
    ],
)
def test_what_breaks_a_core_or_a_table_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        make()

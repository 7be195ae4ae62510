"""Admission rules by name: what is understood, what is refused, and that one name reaches both cores."""

from __future__ import annotations

import pytest

from cli.settings import Settings
from contracts.errors import ConfigError
from contracts.phase import Role
from scheduling.admission_rules import RULES, Budget, Walk, parse_rule
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from scheduling.policies import UNBOUNDED_GAP_S, policy

NAMES = [
    *("ecoserve_paper", "ecoserve_artifact", "min", "mean", "max", "quantile(0.1)", "fixed_interval(0.5)"),
    *("prefill_priority", "sarathi(512)", "deadline", "dcp_greedy", "dcp_predictive"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_configures_both_cores_alike(name: str) -> None:
    found = policy(name)
    cluster, replica = found.cluster_config(), found.replica_config()
    assert cluster.rule is replica.rule is parse_rule(name)
    assert found.role is cluster.rule.role
    assert (cluster.layout == "phased") == (found.role is Role.ALTERNATING)
    published = name.startswith(("ecoserve", "fixed", "prefill"))
    assert (replica.max_gap_s == UNBOUNDED_GAP_S) == published
    assert replica.window_chunking != (cluster.rule.walk is not Walk.FIRST_FIT)


def test_arguments_are_read_and_written_in_one_way() -> None:
    assert parse_rule(" quantile( 0.10 ) ") == parse_rule("quantile(0.1)")
    assert parse_rule("quantile(0.25)").level == 0.25
    assert parse_rule("fixed_interval(.5)").interval == 0.5
    assert (parse_rule("sarathi(256)").budget, parse_rule("sarathi(256)").tokens) == (Budget.FIXED, 256)
    assert parse_rule("ecoserve_paper").level is None
    assert parse_rule("sarathi(8)").role is Role.MIXED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mni", "no rule 'mni'"),
        ("", "no rule ''"),
        ("min(", "no rule 'min('"),
        ("min(1)", "takes no argument"),
        ("quantile", "needs an argument"),
        ("quantile()", "is no number"),
        ("quantile(x)", "'x' is no number"),
        ("quantile(1.5)", "q from 0 to 1"),
        ("quantile(nan)", "q from 0 to 1"),
        ("fixed_interval(0)", "f above 0"),
        ("fixed_interval(inf)", "f above 0"),
        ("sarathi(0)", "whole number"),
        ("sarathi(1.5)", "whole number"),
        ("sarathi(nan)", "whole number"),
    ],
)
def test_what_is_wrong_is_named_with_all_that_there_is(text: str, told: str) -> None:
    for build in (
        lambda: parse_rule(text),
        lambda: ReplicaCoreConfig(admission=text),
        lambda: ClusterCoreConfig(admission=text),
        lambda: policy(text),
    ):
        with pytest.raises(ConfigError) as caught:
            build()
        assert told in str(caught.value)
        assert all(name in str(caught.value) for name in RULES)


@pytest.mark.parametrize("place", ["", "scheduling", "cluster"])
def test_one_setting_reaches_replicas_and_router_wherever_it_is_written(place: str) -> None:
    setting = {"admission": "quantile(0.2)"}
    settings = Settings([{place: setting} if place else setting])
    assert settings.replica(replica_id="a", role=Role.MIXED).core.admission == "quantile(0.2)"
    assert settings.router(fixed={"replicas": ["tcp://127.0.0.1:7001"]}).cluster.admission == "quantile(0.2)"


def test_two_rules_in_one_deployment_are_refused() -> None:
    with pytest.raises(ConfigError, match="one admission rule"):
        Settings([{"admission": "min", "cluster": {"admission": "mean"}}])
    with pytest.raises(ConfigError, match="there is no rule"):
        Settings([{"scheduling": {"admission": "none"}}])

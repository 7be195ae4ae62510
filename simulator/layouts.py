"""One fleet in another layout, by a word: so that layouts are compared on the same replicas."""

from __future__ import annotations

import re

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Role
from scheduling.config import LayoutPolicy
from simulator.scenario import Group, Scenario
from simulator.scenarios import under

WORDS = "phased, colocated, auto, P:D such as 1:3, or a policy"
_RATIO = re.compile(r"(\d{1,9}):(\d{1,9})")


def laid_out(scenario: Scenario, layout: str, replicas: int | None = None) -> Scenario:
    """The scenario with `replicas` replicas (None: as many as it has) like the first of its fleet in that layout.

    `phased`: all alternating; `colocated`: all mixed; `P:D`: so many prefill replicas on so many decode ones, in that
    ratio; `auto`: all mixed at first, the router chooses for each request and the planner changes roles. Another word
    is a policy of `scheduling.policies`, with all that belongs to it. Raises `ConfigError`.
    """
    count = sum(group.count for group in scenario.fleet) if replicas is None else replicas
    if count < 1:
        raise ConfigError(f"replicas must be at least 1, but is {count}", param="replicas")
    ratio = ratio_of(layout)
    if ratio is not None:
        return _fleet(scenario, _pools(layout, *ratio, count), "disaggregated")
    match layout:
        case "phased":
            return _fleet(scenario, {Role.ALTERNATING: count}, "phased")
        case "colocated":
            return _fleet(scenario, {Role.MIXED: count}, "colocated")
        case "auto":
            found = _fleet(scenario, {Role.MIXED: count}, "auto")
            planner = msgspec.structs.replace(found.cluster.planner, enabled=True)
            return msgspec.structs.replace(found, cluster=msgspec.structs.replace(found.cluster, planner=planner))
    try:
        return _named(under(_fleet(scenario, {Role.MIXED: count}, "auto"), layout))
    except ConfigError as error:
        raise ConfigError(f"layout {layout!r}: there are {WORDS} ({error.message})", param="layout") from error


def ratio_of(layout: str) -> tuple[int, int] | None:
    """P and D where the layout is `P:D`."""
    found = _RATIO.fullmatch(layout)
    return None if found is None else (int(found[1]), int(found[2]))


def _pools(layout: str, prefill: int, decode: int, count: int) -> dict[Role, int]:
    parts = prefill + decode
    if prefill < 1 or decode < 1 or count % parts:
        told = f"{count} replicas cannot be {layout} prefill to decode replicas"
        hint = f": a multiple of {parts} can be" if prefill and decode else ""
        raise ConfigError(f"{told}{hint}", param="layout")
    return {Role.PREFILL: prefill * count // parts, Role.DECODE: decode * count // parts}


def _fleet(scenario: Scenario, counts: dict[Role, int], layout: LayoutPolicy) -> Scenario:
    like = scenario.fleet[0]
    fleet = tuple(_group(like, role, count) for role, count in counts.items())
    cluster = msgspec.structs.replace(scenario.cluster, layout=layout)
    return msgspec.structs.replace(scenario, fleet=fleet, cluster=cluster)


def _group(like: Group, role: Role, count: int) -> Group:
    return msgspec.structs.replace(like, role=role, count=count, name="")


def _named(scenario: Scenario) -> Scenario:
    """Ids by the role that a policy gave."""
    return msgspec.structs.replace(
        scenario, fleet=tuple(msgspec.structs.replace(group, name="") for group in scenario.fleet)
    )

"""Admission rules by name: when a prompt may be prefilled where streams run. One name sets cluster and replica core.

rule                 role          what it does
`min`                alternating   a prefill window takes no more than the slack of the tightest stream
`quantile(q)`        alternating   ... than the slack at quantile q (0: the tightest stream)
`mean`, `max`        alternating   ... than the mean, or the greatest: what EcoServe averages, with our bounds kept
`ecoserve_paper`     alternating   Algorithm 1 of EcoServe (Du et al., OSDI'26), see `scheduling.plan_published`
`ecoserve_artifact`  alternating   what its released code does instead, likewise
`fixed_interval(f)`  alternating   its ablation: the turn passes on each f TTFT targets, slack is not looked at
`deadline`           mixed         chunks beside decodes, as large as every stream's next deadline allows; on a
                                   pipeline no larger than the prompts' deadlines need (`scheduling.chunk_policies`)
`sarathi(n)`         mixed         chunks beside decodes in steps of at most n tokens (Sarathi-Serve, OSDI'24)
`dcp_greedy`         mixed         the same, n moved up and down by the slack that is left (DCP, OSDI'26)
`dcp_predictive`     mixed         the same, n the smallest that keeps up with the arrivals by prediction (DCP, OSDI'26)
`prefill_priority`   mixed         prompts first, in steps of their own, decodes when none waits (vLLM's old default)

A rule for one of the two roles leaves replicas of the other at `min` and `deadline`: a fleet may hold both.

Ours (`min`, `quantile`, `mean`, `max`, `deadline`) keep these promises; of the published ones each keeps what it says:
- a prompt that cannot meet its TTFT target neither starves nor blocks others: it is placed as best effort, on a share
  of a replica's time (`forced_share`); `ecoserve_paper` as published rejects it everywhere for ever and has this
  escape from us; the other published rules never let anything wait, and their prompts wait inside the replica, in turn;
- the time waited counts against the TTFT target (not in `ecoserve_paper`, which compares with the whole target);
- streams that begin to decode inside a window are protected like all others (not by the published rules of
  alternating replicas: their window's members are held against the TTFT target only);
- where a stream would be harmed and another replica could take the prompt without harm, that one gets it (not in the
  published ones, which stay with the current replica, so that attainment dips at low load).
EcoServe's artifact also has the replica whose turn it is hold back all its output, which turns unused TTFT into TPOT;
that is not reproduced.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Role


class Walk(StrEnum):
    """How a replica is found on the ring of the alternating ones."""

    FIRST_FIT = "first_fit"
    ALGORITHM_1 = "algorithm_1"
    ARTIFACT = "artifact"
    FIXED_INTERVAL = "fixed_interval"


class Budget(StrEnum):
    """How much may be prefilled beside, or before, the decodes of a mixed replica."""

    DEADLINE = "deadline"
    FIXED = "fixed"
    PREFILL_FIRST = "prefill_first"
    GREEDY = "greedy"
    PREDICTIVE = "predictive"


_FOLLOW_LOAD = (Budget.GREEDY, Budget.PREDICTIVE)


class AdmissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule as a value. `name` is how it was written, `role` that of the replicas it is about.

    Alternating replicas: `walk` finds one, `level` is the quantile of the slack that a window may take (0 the tightest
    stream, 1 the one with most, None the mean), `interval` the length of a turn in TTFT targets. Mixed replicas:
    `budget`, and `tokens` of a step that is `fixed`.
    """

    name: str
    role: Role
    walk: Walk = Walk.FIRST_FIT
    level: float | None = 0.0
    interval: float = 1.0
    budget: Budget = Budget.DEADLINE
    tokens: int = 0

    @property
    def greedy(self) -> bool:
        """An alternating replica prefills whatever it was sent, without a look at slack: that was the cluster's part
        ("keep decoding; on receiving a new request switch to prefill", EcoServe §3.2)."""
        return self.walk is not Walk.FIRST_FIT

    @property
    def follows_load(self) -> bool:
        """Steps hold so many tokens as `scheduling.chunk_policies` finds."""
        return self.budget in _FOLLOW_LOAD

    @property
    def in_turn(self) -> bool:
        """Prompts are served in order of arrival, as in the published systems."""
        return self.greedy or self.budget is not Budget.DEADLINE

    @property
    def never_pending(self) -> bool:
        """Mixed replicas are given requests at once, as published: what waits, waits inside the replica."""
        return self.budget is not Budget.DEADLINE


_PLAIN = {
    rule.name: rule
    for rule in (
        AdmissionRule(name="min", role=Role.ALTERNATING),
        AdmissionRule(name="mean", role=Role.ALTERNATING, level=None),
        AdmissionRule(name="max", role=Role.ALTERNATING, level=1.0),
        AdmissionRule(name="ecoserve_paper", role=Role.ALTERNATING, walk=Walk.ALGORITHM_1, level=None),
        AdmissionRule(name="ecoserve_artifact", role=Role.ALTERNATING, walk=Walk.ARTIFACT, level=1.0),
        AdmissionRule(name="deadline", role=Role.MIXED),
        AdmissionRule(name="prefill_priority", role=Role.MIXED, budget=Budget.PREFILL_FIRST),
        AdmissionRule(name="dcp_greedy", role=Role.MIXED, budget=Budget.GREEDY),
        AdmissionRule(name="dcp_predictive", role=Role.MIXED, budget=Budget.PREDICTIVE),
    )
}
_WITH_ARGUMENT = {"quantile": "q from 0 to 1", "fixed_interval": "f above 0", "sarathi": "n, a whole number from 1"}
RULES = (*_PLAIN, "quantile(q)", "fixed_interval(f)", "sarathi(n)")
"""All names, as they are told when one is not known."""
_WRITTEN = re.compile(r"\s*([a-z_0-9]+)\s*(?:\(\s*([^()]*?)\s*\))?\s*")


@lru_cache(maxsize=256)
def parse_rule(text: str) -> AdmissionRule:
    """The rule that `text` names. Raises `ConfigError`, which names what is wrong and says what there is."""
    match = _WRITTEN.fullmatch(text)
    name, argument = (text, None) if match is None else match.groups()
    if name in _PLAIN and argument is None:
        return _PLAIN[name]
    if name in _PLAIN:
        raise _wrong(text, f"{name} takes no argument")
    if name not in _WITH_ARGUMENT:
        raise _wrong(text, f"there is no rule {name!r}")
    if argument is None:
        raise _wrong(text, f"{name} needs an argument: {_WITH_ARGUMENT[name]}")
    return _with_argument(text, name, argument)


def _with_argument(text: str, name: str, argument: str) -> AdmissionRule:
    try:
        value = float(argument)
    except ValueError:
        raise _wrong(text, f"{argument!r} is no number") from None
    if name == "quantile" and 0.0 <= value <= 1.0:
        return AdmissionRule(name=f"quantile({value:g})", role=Role.ALTERNATING, level=value)
    if name == "fixed_interval" and 0.0 < value < float("inf"):
        return AdmissionRule(
            name=f"fixed_interval({value:g})", role=Role.ALTERNATING, walk=Walk.FIXED_INTERVAL, interval=value
        )
    if name == "sarathi" and 1 <= value < 2**31 and value == int(value):
        return AdmissionRule(name=f"sarathi({int(value)})", role=Role.MIXED, budget=Budget.FIXED, tokens=int(value))
    raise _wrong(text, f"the argument of {name} must be {_WITH_ARGUMENT[name]}")


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(f"admission {text!r}: {why}; there are {', '.join(RULES)}", param="admission")

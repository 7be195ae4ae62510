"""What a run found, as values: one report, printable as a table and as JSON."""

from __future__ import annotations

import msgspec

from contracts.plan import FleetDecision
from simulator.statistics import Summary


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in seconds by one of the two clocks, and the share of requests within both targets.

    `attained` counts requests that were refused or failed as missed. `usual`: TTFT ends with the first token, TPOT is
    the mean gap after it. `ecoserve`: the switch wait belongs to TTFT, and TPOT begins after it (EcoServe §4.1).
    `met_p50`, `met_p90`, `met_p99`: whether that share of the requests was within both (the attainment
    quantiles; without a request it was not).
    """

    ttft_s: Summary
    tpot_s: Summary
    attained: float
    ttft_attained: float
    tpot_attained: float
    met_p50: bool
    met_p90: bool
    met_p99: bool


class ClassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests."""

    name: str
    arrived: int
    finished: int
    usual: Clocks
    ecoserve: Clocks


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`count` requests that were refused, or failed, with this HTTP status for one reason. `reason`: the words of the
    first of them; numbers in it differ from request to request."""

    status: int
    count: int
    reason: str


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica over all its processes. `busy` is the share of its lifetime in which a step ran, of a pipeline the
    mean of its `stages`; `iteration_s` what steps took, of a pipeline in their slowest stage. `bubbles_s`: of a
    pipeline. `overdraft_s`: seconds for which streams were held up beyond their slack; `mape`: of the core's step
    predictor. `kv_bytes_in`: KV of hand-offs that came whole."""

    replica_id: str
    role: str
    alive_s: float
    busy: float
    prefill_s: float
    decode_s: float
    mixed_s: float
    steps: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    kv_bytes_in: int
    overdraft_s: float
    mape: float
    stages: int
    iteration_s: Summary
    bubbles_s: Bubbles


class Bubbles(msgspec.Struct, frozen=True, kw_only=True):
    """Stage-seconds in which stages of a pipeline stood still between two batches: both with prompt tokens, one of
    them, neither; or starved of batches."""

    p_p: float = 0.0
    p_d: float = 0.0
    d_d: float = 0.0
    starved: float = 0.0

    @property
    def unequal_s(self) -> float:
        """Those that come from batches that differ."""
        return self.p_p + self.p_d + self.d_d


class Window(msgspec.Struct, frozen=True):
    """Requests that arrived within one window of time: how many, and how many of them were attained (usual clock)."""

    from_s: float
    arrived: int
    attained: int


class RoleChange(msgspec.Struct, frozen=True):
    """A replica was seen in a role for the first time since it had another."""

    at_s: float
    replica_id: str
    role: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times in seconds, rates per second; requests that arrived in the warm-up are not in the statistics, but
    in `arrived` and `rate`, in the gaps between tokens, and in what is told of replicas, hand-offs and links.

    `throughput`: answered per second; `attained_per_s`: of these, those within both targets by the usual clock (what
    a scan over rates makes of it is `simulator.goodput`). `itl_s`: each gap between tokens, `itl_ecoserve_s`: with the
    switch wait taken out of a stream's first one; `longest_gap_s`: of each request; `queue_s`: at the replica;
    `longest_wait_s`: arrival to first token or refusal; `e2e_s`: to the last one. `prediction_error`: |predicted -
    real| / real of TTFT, of requests that stayed where they were placed; `prediction_bias`: mean of (predicted -
    real) / real. `refused` by HTTP status, `refusals` by reason; `layouts` by name. `jain_tokens`
    over keys: tokens served per token asked for; `jain_attained`: attained share. `recovery_s`: the longest time for
    which the attainment of arrival windows stayed below `recovery_below`.
    """

    seed: int
    duration_s: float
    arrived: int
    finished: int
    refused: dict[str, int]
    refusals: tuple[Refusal, ...]
    rate: float
    throughput: float
    attained_per_s: float
    output_tokens_per_s: float
    usual: Clocks
    ecoserve: Clocks
    switch_wait_s: Summary
    itl_s: Summary
    itl_ecoserve_s: Summary
    longest_gap_s: Summary
    queue_s: Summary
    longest_wait_s: float
    e2e_s: Summary
    prediction_error: Summary
    prediction_bias: float
    layouts: dict[str, int]
    placed_again: int
    handed_over: int
    handoffs_failed: int
    kv_bytes: float
    exposed_s: Summary
    network_busy: float
    utilisation: float
    jain_tokens: float
    jain_attained: float
    recovery_s: float
    recovery_below: float
    classes: tuple[ClassReport, ...]
    replicas: tuple[ReplicaReport, ...]
    windows: tuple[Window, ...]
    roles: tuple[RoleChange, ...]
    fleet_decisions: tuple[FleetDecision, ...]
    proposals: tuple[tuple[float, int, str], ...]
    events: int

    @property
    def attained(self) -> float:
        """Share of requests within both targets, by the usual clock."""
        return self.usual.attained

    def json(self) -> bytes:
        """The whole report; the same run gives the same bytes."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=1)

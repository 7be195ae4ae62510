"""What can be set about decisions. Built once at the entry point, checked when built."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from contracts.cluster_io import OnHandoffFailure, OnUnavailable
from scheduling.admission_rules import AdmissionRule, parse_rule
from scheduling.chunk_config import ChunkConfig
from scheduling.config_checks import require, require_positive
from scheduling.fairness_config import FairnessConfig
from scheduling.macro_config import MacroConfig
from scheduling.planner_config import PlannerConfig

MAX_PIPELINE_DEPTH = 64
SHORTEST_LEASE_S = 0.001
MicroBatches = Literal["even", "kept", "delayed"]
LayoutPolicy = Literal["auto", "colocated", "phased", "disaggregated"]


class ReplicaCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scheduling inside one replica. Bounds are hard: over them a request is refused, never parked.

    `admission` names the rule by which prompts are prefilled beside streams, see `scheduling.admission_rules`; the
    cluster core must have the same. With `window_chunking` a prefill phase is cut where the rule's allowance is used
    up: streams get a step or more, and the phase goes on under the same lease. Without it a prompt is begun only if
    there is enough for the whole of it, and then not cut but by `max_gap_s` (EcoServe).
    `min_chunk` is the smallest prefill chunk worth a step, `max_chunk` the largest (a cancel takes effect at the next
    chunk boundary). `overdue_after` is the age, in multiples of its TTFT target, at which a waiting prompt is served
    even if streams then miss deadlines (bounded overdraft, reported): such prompts get at most `overdraft_share` of
    the time while streams run. `aged_after`, in the same multiples, raises a waiting prompt by one priority level each
    time it passes. `max_gap_s` bounds how long one prefill phase may keep running streams without a token, however
    much slack they have. `predictor_forgetting` is the weight of the past per step, `margin_quantile` the residual
    quantile that decisions add to a prediction.

    `pipeline_depth` is how many steps are in flight at a time: 1, or the stages of a pipeline-parallel engine, each of
    which works on another step. Durations of steps are then those of one stage, and decisions count with as many of
    them between two tokens. `micro_batches` says who decodes in which of them, see `scheduling.micro_batches`; `chunks`
    is about the rules whose steps follow the load, and the step sizes of a pipeline under `deadline`.

    Hand-offs: at most `max_receiving` sequences wait for their KV at a time, the rest queues. A receiver keeps its
    blocks `kv_lease_factor` times as long as the sender and the link should need from the last sign of life on, within
    `kv_lease_min_s` and `kv_lease_max_s`; a sender keeps them `kv_lease_max_s`, or longer in proportion to the bytes.

    Links: transfers below `link_sample_min_bytes` tell nothing about the rate. The weight of a measurement halves
    every `link_half_life_s`. A link that nothing was measured on for `link_stale_s` is probed when it is idle: about
    `link_probe_s` of its rate in bytes, between `link_probe_min_bytes` and `link_probe_max_bytes`, one probe at a time
    and one each `link_probe_gap_s`; a probe without an answer is forgotten after `link_probe_deadline_s`.
    """

    max_running: int = 64
    max_waiting: int = 256
    max_waiting_tokens: int = 262_144
    admission: str = "min"
    window_chunking: bool = True
    min_chunk: int = 32
    max_chunk: int = 512
    chunk_multiple: int = 16
    overdue_after: float = 1.0
    prefix_cache: bool = True
    output_reserve_quantile: float = 0.5
    max_preemptions: int = 3
    overdraft_share: float = 0.25
    aged_after: float = 4.0
    max_gap_s: float = 1.0
    predictor_forgetting: float = 0.995
    margin_quantile: float = 0.95
    pipeline_depth: int = 1
    micro_batches: MicroBatches = "even"
    chunks: ChunkConfig = ChunkConfig()
    max_receiving: int = 16
    kv_lease_min_s: float = 2.0
    kv_lease_max_s: float = 30.0
    kv_lease_factor: float = 3.0
    link_sample_min_bytes: int = 262_144
    link_half_life_s: float = 60.0
    link_stale_s: float = 30.0
    link_probe_s: float = 0.1
    link_probe_min_bytes: int = 4_194_304
    link_probe_max_bytes: int = 67_108_864
    link_probe_gap_s: float = 1.0
    link_probe_deadline_s: float = 15.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in (
            *("max_running", "max_waiting", "max_waiting_tokens", "min_chunk", "chunk_multiple"),
            *("max_receiving", "link_sample_min_bytes", "link_probe_min_bytes", "pipeline_depth"),
        ):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        require(self.micro_batches in get_args(MicroBatches), "micro_batches", "must be even, kept or delayed")
        require(self.pipeline_depth <= MAX_PIPELINE_DEPTH, "pipeline_depth", f"must be at most {MAX_PIPELINE_DEPTH}")
        require(self.kv_lease_factor >= 1.0, "kv_lease_factor", "must be at least 1")
        require_positive(self.kv_lease_max_s, "kv_lease_max_s")
        require(self.kv_lease_max_s >= self.kv_lease_min_s, "kv_lease_max_s", "must be at least kv_lease_min_s")
        require(
            self.link_probe_max_bytes >= self.link_probe_min_bytes,
            "link_probe_max_bytes",
            "must be at least link_probe_min_bytes",
        )
        parse_rule(self.admission)
        require(self.max_chunk >= self.min_chunk, "max_chunk", "must be at least min_chunk")
        require(self.max_preemptions >= 0, "max_preemptions", "must not be negative")
        for name in ("output_reserve_quantile", "margin_quantile"):
            require(0.0 <= getattr(self, name) <= 1.0, name, "must be between 0 and 1")
        for name in (
            *("overdue_after", "aged_after", "max_gap_s", "kv_lease_min_s", "link_half_life_s", "link_stale_s"),
            *("link_probe_s", "link_probe_gap_s", "link_probe_deadline_s"),
        ):
            require_positive(getattr(self, name), name)
        require(0.0 < self.overdraft_share < 1.0, "overdraft_share", "must be between 0 and 1")
        require(0.5 <= self.predictor_forgetting <= 1.0, "predictor_forgetting", "must be between 0.5 and 1")

    @property
    def rule(self) -> AdmissionRule:
        """`admission` as a value."""
        return parse_rule(self.admission)


class ClusterCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Placement over the replicas. Times in seconds.

    A pending request is refused with 429 when the queue holds `max_pending` requests or `max_pending_s` of predicted
    prefill, and with 504 when it waited `pending_deadline_s`; a placed one with 504 when its first token did not come
    within `first_token_deadline_s` of its arrival. One request is sent to at most `max_dispatches` replicas in turn, a
    stream that the cluster moves to one more.

    A view older than `view_stale_s` keeps new requests off its replica, unless it is the only one; older than
    `view_dead_s`, or with one step running for `step_stuck_s`, it keeps them off in any case.

    `admission` names the rule by which prompts are placed beside streams, see `scheduling.admission_rules`; the replica
    cores must have the same, and the same `window_chunking` and `max_gap_s`: windows are planned as they will be cut.

    A request that can no longer meet its TTFT target goes where slack allows; without that it is forced upon an
    alternating replica with streams, but forced prompts get at most `forced_share` of such a replica's time.

    With `prefix_affinity` what replicas hold in their prefix caches counts in every prediction.
    `output_reserve_quantile` of the output lengths seen is the KV reserve of a new request. `pending_tries` bounds how
    many pending requests one event tries to place; each `aged_after` TTFT targets of waiting raise one by a priority.

    `layout` "auto" compares all layouts for each request, any other is forced. `on_unavailable` says what happens when
    a layout that was forced, or the hand-off in a fleet of prefill and decode replicas, cannot be had: "colocate" has
    the request served in another way and says so, "fail" refuses it with 503. A request may bring its own of both.
    `on_handoff_failure` "recompute" continues elsewhere a request whose hand-off failed or whose replica died while it
    streamed, "fail" ends it.

    A link is counted on with its estimate less `link_caution` times its relative spread, which grows by
    `link_spread_per_s` for each second since the last measurement; a link never measured with
    `link_unmeasured_bytes_per_s`. `link_cost` is what a second of transfer costs beside a second of a replica.
    """

    layout: LayoutPolicy = "auto"
    on_unavailable: OnUnavailable = "colocate"
    on_handoff_failure: OnHandoffFailure = "recompute"
    link_caution: float = 1.0
    link_spread_per_s: float = 0.001
    link_unmeasured_bytes_per_s: float = 12_500_000.0
    link_cost: float = 0.1
    admission: str = "min"
    window_chunking: bool = True
    max_gap_s: float = 1.0
    max_pending: int = 256
    max_pending_s: float = 60.0
    pending_deadline_s: float = 120.0
    first_token_deadline_s: float = 600.0
    max_dispatches: int = 3
    lease_s: float = 2.0
    view_stale_s: float = 2.0
    view_dead_s: float = 5.0
    step_stuck_s: float = 30.0
    retry_after_s: float = 2.0
    prefix_affinity: bool = True
    forced_share: float = 0.25
    output_reserve_quantile: float = 0.5
    pending_tries: int = 16
    aged_after: float = 2.0
    prefill_chunk: int = 512
    decisions_kept: int = 1024
    macro: MacroConfig = MacroConfig()
    planner: PlannerConfig = PlannerConfig()
    fairness: FairnessConfig = FairnessConfig()

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("max_pending", "max_dispatches", "pending_tries", "prefill_chunk", "decisions_kept"):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in (
            *("max_pending_s", "pending_deadline_s", "first_token_deadline_s", "lease_s", "view_stale_s"),
            *("step_stuck_s", "retry_after_s", "aged_after", "link_unmeasured_bytes_per_s", "max_gap_s"),
        ):
            require_positive(getattr(self, name), name)
        require(self.lease_s >= SHORTEST_LEASE_S, "lease_s", f"must be at least {SHORTEST_LEASE_S:g}")
        for name in ("link_caution", "link_spread_per_s", "link_cost"):
            require(getattr(self, name) >= 0.0, name, "must not be negative")
        parse_rule(self.admission)
        require(self.layout in get_args(LayoutPolicy), "layout", f"must be one of {', '.join(get_args(LayoutPolicy))}")
        require(self.on_unavailable in get_args(OnUnavailable), "on_unavailable", "must be fail or colocate")
        known = get_args(OnHandoffFailure)
        require(self.on_handoff_failure in known, "on_handoff_failure", "must be recompute or fail")
        require(self.view_dead_s >= self.view_stale_s, "view_dead_s", "must be at least view_stale_s")
        require(0.0 < self.forced_share <= 1.0, "forced_share", "must be above 0 and at most 1")
        require(0.0 <= self.output_reserve_quantile <= 1.0, "output_reserve_quantile", "must be between 0 and 1")

    @property
    def rule(self) -> AdmissionRule:
        """`admission` as a value."""
        return parse_rule(self.admission)

"""What can be set about decisions. Built once at the entry point, checked when built."""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.errors import ConfigError

SlackRule = Literal["min", "quantile", "mean", "max"]
BudgetPolicy = Literal["deadline", "fixed"]


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} {rule}", param=name)


class ReplicaCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scheduling inside one replica. Bounds are hard: over them a request is refused, never parked.

    `budget` = "fixed" is Sarathi with `fixed_tokens`; "deadline" takes the largest chunk that keeps every stream's
    deadline. `slack_rule` governs the prefill phases of an alternating replica (`slack_quantile` for "quantile").
    `min_chunk` is the smallest prefill chunk worth a step, `max_chunk` the largest (a cancel takes effect at the next
    chunk boundary). `overdue_after` is the age, in multiples of its TTFT target, at which a waiting prompt is served
    even if streams then miss deadlines (bounded overdraft, reported): such prompts get at most `overdraft_share` of
    the time while streams run. `aged_after`, in the same multiples, raises a waiting prompt by one priority level each
    time it passes. `max_gap_s` bounds how long one prefill phase may keep running streams without a token, however
    much slack they have. `predictor_forgetting` is the weight of the past per step, `margin_quantile` the residual
    quantile that decisions add to a prediction.
    """

    max_running: int = 64
    max_waiting: int = 256
    max_waiting_tokens: int = 262_144
    budget: BudgetPolicy = "deadline"
    fixed_tokens: int = 512
    min_chunk: int = 32
    max_chunk: int = 512
    chunk_multiple: int = 16
    slack_rule: SlackRule = "min"
    slack_quantile: float = 0.1
    overdue_after: float = 1.0
    prefix_cache: bool = True
    output_reserve_quantile: float = 0.5
    max_preemptions: int = 3
    overdraft_share: float = 0.25
    aged_after: float = 4.0
    max_gap_s: float = 1.0
    predictor_forgetting: float = 0.995
    margin_quantile: float = 0.95

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("max_running", "max_waiting", "max_waiting_tokens", "fixed_tokens", "min_chunk", "chunk_multiple"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        _require(self.max_chunk >= self.min_chunk, "max_chunk", "must be at least min_chunk")
        _require(self.max_preemptions >= 0, "max_preemptions", "must not be negative")
        for name in ("slack_quantile", "output_reserve_quantile", "margin_quantile"):
            _require(0.0 <= getattr(self, name) <= 1.0, name, "must be between 0 and 1")
        for name in ("overdue_after", "aged_after", "max_gap_s"):
            _require(getattr(self, name) > 0.0, name, "must be positive")
        _require(0.0 < self.overdraft_share < 1.0, "overdraft_share", "must be between 0 and 1")
        _require(0.5 <= self.predictor_forgetting <= 1.0, "predictor_forgetting", "must be between 0.5 and 1")


class ClusterCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Placement over the replicas. Times in seconds.

    A pending request is refused with 429 when the queue holds `max_pending` requests or `max_pending_s` of predicted
    prefill, and with 504 when it waited `pending_deadline_s`; a placed one with 504 when its first token did not come
    within `first_token_deadline_s` of its arrival. One request is sent to at most `max_dispatches` replicas in turn.

    A view older than `view_stale_s` keeps new requests off its replica, unless it is the only one; older than
    `view_dead_s`, or with one step running for `step_stuck_s`, it keeps them off in any case.

    A request that can no longer meet its TTFT target goes where slack allows; without that it is forced upon an
    alternating replica with streams, but forced prompts get at most `forced_share` of such a replica's time.

    `output_reserve_quantile` of the output lengths seen is the KV reserve of a new request. `pending_tries` bounds how
    many pending requests one event tries to place; each `aged_after` TTFT targets of waiting raise one by a priority.
    """

    slack_rule: SlackRule = "min"
    slack_quantile: float = 0.1
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
    forced_share: float = 0.25
    output_reserve_quantile: float = 0.5
    pending_tries: int = 16
    aged_after: float = 2.0
    prefill_chunk: int = 512
    decisions_kept: int = 1024

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("max_pending", "max_dispatches", "pending_tries", "prefill_chunk", "decisions_kept"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in (
            *("max_pending_s", "pending_deadline_s", "first_token_deadline_s", "lease_s", "view_stale_s"),
            *("step_stuck_s", "retry_after_s", "aged_after"),
        ):
            _require(getattr(self, name) > 0.0, name, "must be positive")
        _require(self.view_dead_s >= self.view_stale_s, "view_dead_s", "must be at least view_stale_s")
        _require(0.0 < self.forced_share <= 1.0, "forced_share", "must be above 0 and at most 1")
        for name in ("slack_quantile", "output_reserve_quantile"):
            _require(0.0 <= getattr(self, name) <= 1.0, name, "must be between 0 and 1")

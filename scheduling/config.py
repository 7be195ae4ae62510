"""What can be set about decisions. Built once at the entry point, checked when built."""

from __future__ import annotations

from typing import Literal

import msgspec

SlackRule = Literal["min", "quantile", "mean", "max"]
BudgetPolicy = Literal["deadline", "fixed"]


class ReplicaCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scheduling inside one replica. Bounds are hard: over them a request is refused, never parked.

    `budget` = "fixed" is Sarathi with `fixed_tokens`; "deadline" takes the largest chunk that keeps every stream's
    deadline. `slack_rule` governs the prefill phases of an alternating replica (`slack_quantile` for "quantile").
    `min_chunk` is the smallest prefill chunk worth a step, `max_chunk` the largest (a cancel takes effect at the next
    chunk boundary). `overdue_after` is the age, in multiples of its TTFT target, at which a waiting prompt is served
    even if streams then miss deadlines (bounded overdraft, reported).
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


class ClusterCoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Placement over the replicas. Times in seconds.

    A pending request is refused with 429 when the queue holds `max_pending` requests or `max_pending_s` of predicted
    prefill, and with 504 when it waited `pending_deadline_s`; a placed one with 504 when its first token did not come
    within `first_token_deadline_s` of its arrival. One request is sent to at most `max_dispatches` replicas in turn.

    A view older than `view_stale_s` keeps new requests off its replica, unless it is the only one; older than
    `view_dead_s`, or with one step running for `step_stuck_s`, it keeps them off in any case.

    A request that can no longer meet its TTFT target is placed as best effort, which may take at most
    `best_effort_share` of the time of a replica with running streams.

    `output_reserve_tokens` is the KV reserve of a new request until lengths of real outputs are known, from then on
    their `output_reserve_quantile`. `pending_tries` bounds how many pending requests one event tries to place.
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
    best_effort_share: float = 0.5
    output_reserve_tokens: int = 128
    output_reserve_quantile: float = 0.5
    pending_tries: int = 32
    prefill_chunk: int = 512
    decisions_kept: int = 1024

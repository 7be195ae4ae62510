"""The replicas as the cluster core knows them: last view, what was sent since, and whether they may be given work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from contracts.phase import Role
from contracts.views import ReplicaIdentity, ReplicaView
from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Load
from scheduling.plan_slack import allowed_slack_s

PLACEABLE = frozenset({Role.ALTERNATING, Role.MIXED})


@dataclass(slots=True)
class ReplicaRecord:
    """One live replica. `placed` holds every request placed here and not ended; `unacked` those of them that the
    last view does not count yet (views lag). `window` holds when the TTFT target of each member of the current
    prefill window ends. `lease_until` is when the prefill lease ends, `forced_at` when the next late prompt may be
    forced upon the streams here.
    """

    identity: ReplicaIdentity
    view: ReplicaView
    view_at: float
    last_submit_index: int
    placed: dict[str, RequestRecord] = field(default_factory=dict)
    unacked: dict[str, RequestRecord] = field(default_factory=dict)
    lease_until: float | None = None
    forced_at: float = 0.0
    window: dict[str, float] = field(default_factory=dict)

    @property
    def replica_id(self) -> str:
        """Its name."""
        return self.identity.replica_id

    @property
    def placeable(self) -> bool:
        """Whether its role lets it serve requests whole and it is not draining."""
        return self.view.role in PLACEABLE and not self.view.draining

    @property
    def backlog_s(self) -> float:
        """Predicted prefill time accepted or on its way, not done."""
        on_its_way = sum(record.prefill_s for record in self.unacked.values() if not record.prefill_finished)
        return max(0.0, self.view.backlog_s) + on_its_way

    @property
    def has_prefill_work(self) -> bool:
        """Whether any prompt waits here or is on its way."""
        if self.view.waiting > 0 or self.view.backlog_s > 0:
            return True
        return any(not record.prefill_finished for record in self.unacked.values())

    def report(self, view: ReplicaView, now: float) -> None:
        """Take a newer view: forget what it counts, and close the prefill window once nothing is left to prefill."""
        self.view = view
        self.view_at = now
        self.last_submit_index = max(self.last_submit_index, view.acked_submit_index)
        acked = view.acked_submit_index
        for request_id in [name for name, record in self.unacked.items() if record.submit_index <= acked]:
            del self.unacked[request_id]
        if not self.has_prefill_work:
            self.window.clear()

    def place(self, record: RequestRecord, now: float, config: ClusterCoreConfig) -> None:
        """Count a request that is being dispatched here; it gets the next submit index.

        A window must end within the TTFT target of each member, except of best-effort ones, which are late anyhow.
        """
        self.last_submit_index += 1
        record.submit_index = self.last_submit_index
        record.replica_id = self.replica_id
        if record.best_effort:
            self.forced_at = now + (self.backlog_s + record.prefill_s) / config.forced_share
        else:
            self.window[record.request_id] = record.ttft_deadline_at
        self.placed[record.request_id] = record
        self.unacked[record.request_id] = record

    def forget(self, record: RequestRecord) -> None:
        """The request is no longer here. Idempotent, and harmless for a namesake's replacement."""
        if self.placed.get(record.request_id) is record:
            del self.placed[record.request_id]
            self.unacked.pop(record.request_id, None)
            self.window.pop(record.request_id, None)

    def load(self, now: float, closed: str | None, reserve_tokens: int, config: ClusterCoreConfig) -> Load:
        """What placement sees of this replica at `now`. A running stream is taken to be half-way on average."""
        view = self.view
        unacked_sequences = 0
        unacked_blocks = 0
        for record in self.unacked.values():
            unacked_sequences += record.asked.num_sequences
            unacked_blocks += record.blocks
        waiting_blocks = -(-view.waiting_tokens // view.block_size)
        free_blocks = view.free_blocks - waiting_blocks - unacked_blocks
        window_left_s = min(
            (due_at - now for due_at in self.window.values() if due_at > now),  # one already missed protects nothing
            default=None,
        )
        return Load(
            replica_id=self.replica_id,
            role=view.role,
            cost=view.cost,
            backlog_s=self.backlog_s,
            running=view.running,
            waiting=view.waiting + unacked_sequences,
            decode_step_s=view.decode_step_s,
            slack_s=allowed_slack_s(view, config.slack_rule, config.slack_quantile),
            tightest_slack_s=allowed_slack_s(view, "min", 0.0),
            free_blocks=free_blocks,
            spare_blocks=free_blocks - view.running * -(-reserve_tokens // (2 * view.block_size)),
            num_blocks=view.num_blocks,
            block_size=view.block_size,
            max_running=self.identity.max_running,
            max_waiting=self.identity.max_waiting,
            window_left_s=window_left_s,
            forced_wait_s=max(0.0, self.forced_at - now),
            closed=closed,
        )


class Fleet:
    """All live replicas by id, and the rolling pointer. Iteration is in order of id, so decisions are repeatable."""

    def __init__(self, config: ClusterCoreConfig) -> None:
        self._config = config
        self._records: dict[str, ReplicaRecord] = {}
        self.pointer: str | None = None

    def __iter__(self) -> Iterator[ReplicaRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, replica_id: str | None) -> ReplicaRecord | None:
        """The live replica of that name, if any."""
        return None if replica_id is None else self._records.get(replica_id)

    def join(self, identity: ReplicaIdentity, view: ReplicaView, now: float) -> None:
        """Add a replica. It must not be there."""
        assert identity.replica_id not in self._records
        joined = ReplicaRecord(identity, view, now, last_submit_index=view.acked_submit_index)
        self._records[identity.replica_id] = joined
        self._records = dict(sorted(self._records.items()))

    def drop(self, replica_id: str) -> ReplicaRecord | None:
        """Remove a replica; its record is the caller's to wind up."""
        return self._records.pop(replica_id, None)

    @property
    def num_placeable(self) -> int:
        """Live replicas that are not draining and whose role serves whole requests."""
        return sum(record.placeable for record in self)

    def closed_reason(self, record: ReplicaRecord, now: float) -> str | None:
        """Why nothing may be placed on this replica now, or None."""
        return self._closed_reason(record, now, self._oldest_view_s())

    def _oldest_view_s(self) -> float:
        """How old a view may be: more when there is no other replica to turn to."""
        return self._config.view_dead_s if self.num_placeable == 1 else self._config.view_stale_s

    def _closed_reason(self, record: ReplicaRecord, now: float, oldest_view_s: float) -> str | None:
        view, age_s = record.view, now - record.view_at
        if view.role not in PLACEABLE:
            return f"role is {view.role}"
        if view.draining:
            return "draining"
        if age_s > oldest_view_s:
            return f"last view {age_s:.1f} s old"
        if view.step_age_s > 0 and view.step_age_s + age_s > self._config.step_stuck_s:
            return f"one step has run for {view.step_age_s + age_s:.1f} s"
        return None

    def loads(self, now: float, reserve_tokens: int, avoid: str | None) -> tuple[list[Load], list[Load]]:
        """Loads of the alternating replicas in rolling order, and of the mixed ones; `avoid` left out.

        `reserve_tokens` is the output length expected.
        """
        oldest_view_s = self._oldest_view_s()
        ring: list[Load] = []
        mixed: list[Load] = []
        for record in self._rolling_order():
            if record.replica_id == avoid or record.view.role not in PLACEABLE:
                continue
            closed = self._closed_reason(record, now, oldest_view_s)
            load = record.load(now, closed, reserve_tokens, self._config)
            (ring if record.view.role is Role.ALTERNATING else mixed).append(load)
        return ring, mixed

    def keep_pointer_open(self, now: float) -> None:
        """Move the rolling pointer on when its replica can no longer take work and another alternating one can."""
        order = [record for record in self._rolling_order() if record.view.role is Role.ALTERNATING]
        for record in order:
            if self.closed_reason(record, now) is None:
                self.pointer = record.replica_id
                return
        if order and self.get(self.pointer) is None:
            self.pointer = order[0].replica_id

    def _rolling_order(self) -> list[ReplicaRecord]:
        """Cyclic order by id, starting with the pointer's replica (or the next one if it is gone)."""
        records = list(self._records.values())
        if self.pointer is None:
            return records
        start = next((i for i, record in enumerate(records) if record.replica_id >= self.pointer), 0)
        return records[start:] + records[:start]

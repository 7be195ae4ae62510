"""Requests that no replica can take yet: bounded in number and in predicted prefill time, ordered by urgency."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.prompt_order import moore_hodgson


class PendingQueue:
    """Pending requests by id, in order of arrival here. Bounds are hard."""

    def __init__(self, config: ClusterCoreConfig) -> None:
        self._config = config
        self._records: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(tuple(self._records.values()))

    @property
    def prefill_s(self) -> float:
        """Predicted prefill time of everything that waits."""
        return sum(record.prefill_s for record in self._records.values())

    def overflow(self, record: RequestRecord) -> str | None:
        """Why one more request would be over a bound, or None. An empty queue takes any single request."""
        if not self._records:
            return None
        if len(self._records) >= self._config.max_pending:
            return f"{len(self._records)} requests are waiting, at most {self._config.max_pending} may"
        prefill_s = self.prefill_s + record.prefill_s
        if prefill_s > self._config.max_pending_s:
            return f"{prefill_s:.1f} s of prefill would be waiting, at most {self._config.max_pending_s:.1f} s may"
        return None

    def add(self, record: RequestRecord) -> None:
        """Queue a request. The caller has asked `overflow`."""
        assert record.request_id not in self._records
        self._records[record.request_id] = record

    def youngest(self) -> RequestRecord | None:
        """The last that came of those that do not stream yet: the first to make room for one that does."""
        fresh = (record for record in reversed(self._records.values()) if record.resumed_at is None)
        return next(fresh, None)

    def remove(self, request_id: str) -> None:
        """Take a request out. Idempotent."""
        self._records.pop(request_id, None)

    def expired(self, now: float) -> list[RequestRecord]:
        """Requests that have waited `pending_deadline_s` since they arrived, or lost their place."""
        return [r for r in self._records.values() if now - r.due_from >= self._config.pending_deadline_s]

    def in_order(self, now: float) -> tuple[list[RequestRecord], list[RequestRecord]]:
        """The order in which to try them: those that can still be on time, then the late ones.

        Those whose streams broke off come before all, the longest waiting first. The punctual go by priority, then by
        Moore-Hodgson on their TTFT deadlines; one window is open for prefill at a time, hence the single-machine rule.
        What it drops, because not all can be on time, follows in deadline order. The late go by priority raised by
        age, then by arrival.
        """
        levels: dict[int, list[RequestRecord]] = {}
        late: list[RequestRecord] = []
        punctual: list[RequestRecord] = []
        for record in self._records.values():
            if record.resumed_at is not None:
                punctual.append(record)
            elif now + record.prefill_s > record.ttft_deadline_at:
                late.append(record)
            else:
                levels.setdefault(record.asked.priority, []).append(record)
        late.sort(key=lambda record: (-self._level(record, now), record.arrived_at))
        punctual.sort(key=lambda record: record.due_from)
        start = now + sum(record.prefill_s for record in punctual)
        for level in sorted(levels, reverse=True):
            members = levels[level]
            on_time, dropped = moore_hodgson([(r.ttft_deadline_at, r.prefill_s) for r in members], start)
            punctual += [members[index] for index in on_time + dropped]
            start += sum(members[index].prefill_s for index in on_time)
        return punctual, late

    def _level(self, record: RequestRecord, now: float) -> int:
        aged_s = self._config.aged_after * max(record.asked.slo.ttft_s, 1e-3)
        return record.asked.priority + int((now - record.arrived_at) / aged_s)

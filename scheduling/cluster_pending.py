"""Requests that no replica can take yet: bounded in number and in predicted prefill time, ordered by urgency.

A request for `n` sequences counts n times. Priority comes first, then the fair shares of keys, then urgency within one
key (`in_order`); when the queue is full, whoever has more in it than its part makes room (`victim`).
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fair_share import Account, FairShares
from scheduling.prompt_order import moore_hodgson


class PendingQueue:
    """Pending requests by id, in order of arrival here. Bounds are hard."""

    def __init__(self, config: ClusterCoreConfig, shares: FairShares) -> None:
        self._config = config
        self._shares = shares
        self._records: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(tuple(self._records.values()))

    @property
    def prefill_s(self) -> float:
        """Predicted prefill time of everything that waits."""
        return sum(record.prefill_s for record in self._records.values())

    @property
    def num_sequences(self) -> int:
        """How many sequences wait."""
        return sum(record.asked.num_sequences for record in self._records.values())

    def overflow(self, record: RequestRecord) -> str | None:
        """Why one more request would be over a bound, or None. An empty queue takes any single request."""
        if not self._records:
            return None
        sequences = self.num_sequences
        if sequences + record.asked.num_sequences > self._config.max_pending:
            return f"{sequences} requests are waiting, at most {self._config.max_pending} may"
        prefill_s = self.prefill_s + record.prefill_s
        if prefill_s > self._config.max_pending_s:
            return f"{prefill_s:.1f} s of prefill would be waiting, at most {self._config.max_pending_s:.1f} s may"
        return None

    def add(self, record: RequestRecord) -> None:
        """Queue a request. The caller has asked `overflow`."""
        assert record.request_id not in self._records
        self._records[record.request_id] = record

    def victim(self, record: RequestRecord) -> RequestRecord | None:
        """Who makes room for `record`, when there is none: never one that streams already.

        For one that streams already the last that came. Else the last that came of the lowest priority below its own;
        else the last of the key that has most prefill waiting over its weight, if it would have more than the key of
        `record` all the same.
        """
        fresh = [other for other in reversed(self._records.values()) if other.resumed_at is None]
        if not fresh or record.resumed_at is not None:
            return fresh[0] if fresh else None
        if not self._makes_room([other for other in fresh if other.asked.priority <= record.asked.priority], record):
            return None  # nobody is turned away in vain
        lowest = min(fresh, key=lambda other: other.asked.priority)
        if lowest.asked.priority < record.asked.priority:
            return lowest
        held_s: dict[str, float] = {}
        for other in self._records.values():
            account = self._shares.account_of(other)
            held_s[account.key] = held_s.get(account.key, 0.0) + other.prefill_s / account.weight
        own = self._shares.account_of(record)
        of_equals = (other for other in fresh if other.asked.priority <= record.asked.priority)
        most = max(of_equals, key=lambda other: held_s[self._shares.account_of(other).key], default=None)
        if most is None:
            return None
        theirs = self._shares.account_of(most)
        if theirs is own:
            return None
        after_s = held_s[theirs.key] - most.prefill_s / theirs.weight
        return most if after_s >= held_s.get(own.key, 0.0) + record.prefill_s / own.weight else None

    def _makes_room(self, others: list[RequestRecord], record: RequestRecord) -> bool:
        """Whether `record` would be within the bounds if all of `others` were gone."""
        sequences = self.num_sequences - sum(other.asked.num_sequences for other in others)
        prefill_s = self.prefill_s - sum(other.prefill_s for other in others)
        return (
            sequences + record.asked.num_sequences <= self._config.max_pending
            and prefill_s + record.prefill_s <= self._config.max_pending_s + 1e-9
        )

    def waiting_before(self, record: RequestRecord) -> bool:
        """Whether a request of no lower priority waits whose key has its turn before that of `record`."""
        if not self._records:
            return False
        own = self._shares.account_of(record)
        accounts: dict[str, Account] = {}
        for other in self._records.values():
            if other.asked.priority >= record.asked.priority:
                account = self._shares.account_of(other)
                if account is not own:
                    accounts[account.key] = account
        return bool(accounts) and self._shares.comes_before(accounts.values(), record)

    def remove(self, request_id: str) -> None:
        """Take a request out. Idempotent."""
        self._records.pop(request_id, None)

    def expired(self, now: float) -> list[RequestRecord]:
        """Requests that have waited `pending_deadline_s` since they arrived, or lost their place."""
        return [r for r in self._records.values() if now - r.due_from >= self._config.pending_deadline_s]

    def in_order(self, now: float) -> tuple[list[RequestRecord], list[RequestRecord]]:
        """The order in which to try them: those that can still be on time, then the late ones.

        Those whose streams broke off come before all, the longest waiting first. The punctual go by priority, within
        that keys take turns (`FairShares.interleave`), and each key's go by Moore-Hodgson on their TTFT deadlines, a
        key being served at the rate of its share; one window is open for prefill at a time, hence the single-machine
        rule. What it drops, because not all can be on time, follows in deadline order. The late go by priority raised
        by age, then keys take turns, then by arrival.
        """
        levels: dict[int, list[RequestRecord]] = {}
        late: dict[int, list[RequestRecord]] = {}
        punctual: list[RequestRecord] = []
        for record in self._records.values():
            if record.resumed_at is not None:
                punctual.append(record)
            elif now + record.prefill_s > record.ttft_deadline_at:
                late.setdefault(self._level(record, now), []).append(record)
            else:
                levels.setdefault(record.asked.priority, []).append(record)
        punctual.sort(key=lambda record: record.due_from)
        start = now + sum(record.prefill_s for record in punctual)
        for level in sorted(levels, reverse=True):
            queues = self._by_key(levels[level])
            weight = sum(self._shares.account_of(queue[0]).weight for queue in queues.values())
            done_s = 0.0
            for key, members in queues.items():
                slower = 1.0 if len(queues) == 1 else weight / self._shares.account_of(members[0]).weight
                jobs = [(r.ttft_deadline_at, r.prefill_s * slower) for r in members]
                on_time, dropped = moore_hodgson(jobs, start)
                queues[key] = [members[index] for index in on_time + dropped]
                done_s += sum(members[index].prefill_s for index in on_time)
            start += done_s
            punctual += self._shares.interleave(queues)
        tardy: list[RequestRecord] = []
        for level in sorted(late, reverse=True):
            late[level].sort(key=lambda record: record.arrived_at)
            tardy += self._shares.interleave(self._by_key(late[level]))
        return punctual, tardy

    def _by_key(self, records: list[RequestRecord]) -> dict[str, list[RequestRecord]]:
        queues: dict[str, list[RequestRecord]] = {}
        for record in records:
            queues.setdefault(self._shares.account_of(record).key, []).append(record)
        return queues

    def _level(self, record: RequestRecord, now: float) -> int:
        aged_s = self._config.aged_after * max(record.asked.slo.ttft_s, 1e-3)
        return record.asked.priority + int((now - record.arrived_at) / aged_s)

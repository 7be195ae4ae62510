"""When a request has to wait for those of other keys, and when one that is refused should come again."""

from __future__ import annotations

from scheduling.cluster_fleet import Fleet
from scheduling.cluster_pending import PendingQueue
from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fair_share import FairShares
from scheduling.plan_inputs import Ask, Candidate
from scheduling.prefill_capacity import PrefillCapacity


class Turns:
    """The pending queue, the accounts of the keys, and the rate at which the fleet works the queue off."""

    def __init__(self, config: ClusterCoreConfig, fleet: Fleet) -> None:
        self._config = config
        self._fleet = fleet
        self.shares = FairShares(config.fairness)
        self.pending = PendingQueue(config, self.shares)
        self._capacity = PrefillCapacity()

    def why_wait(self, record: RequestRecord, now: float) -> str | None:
        """Why a request that just came has to wait for those of other keys, or None."""
        if record.resumed_at is None and self.pending.waiting_before(record):
            return "it is the turn of another key"
        return "its key holds more than its part of the prompts not computed" if self.too_much(record, now) else None

    def too_much(self, record: RequestRecord, now: float) -> bool:
        """As `FairShares.is_over`, but no replica is kept without a prompt by it, nor a stream that broke off."""
        if record.resumed_at is not None or not self.shares.is_over(record, self._fleet.num_open, now):
            return False
        return all(
            replica.has_prefill_work or self._fleet.closed_reason(replica, now) is not None for replica in self._fleet
        )

    def wait(self, record: RequestRecord, now: float) -> None:
        """Queue a request. The caller has asked `PendingQueue.overflow`."""
        self.pending.add(record)
        self.looked_at(now)

    def placed(self, record: RequestRecord, ask: Ask, found: Candidate) -> None:
        """Charge the key of a request that is sent out: its output is predicted to take its part of each step."""
        streams = found.load.running + found.load.waiting + ask.num_sequences
        tokens = ask.num_sequences * min(ask.reserve_tokens, record.asked.max_tokens)
        self.shares.placed(record, found.tpot_s / streams, tokens)

    def prefilled(self, record: RequestRecord, now: float) -> None:
        """Nothing of it is left to prefill."""
        self.shares.prefilled(record)
        self._capacity.prefilled(record.prefill_s, now)

    def looked_at(self, now: float) -> None:
        """Keep in mind since when requests wait."""
        if len(self.pending):
            self._capacity.backlog_at(now)
        else:
            self._capacity.backlog_gone()

    def retry_after_s(self, now: float) -> float:
        """When trying again is worth while: how long the predicted prefill time ahead takes at the rate at which the
        fleet works it off now. As long as that is not known: every replica that takes work prefills all the time."""
        ahead_s = self.pending.prefill_s + sum(replica.backlog_s for replica in self._fleet)
        rate = self._capacity.rate(max(1, self._fleet.num_open), now)
        return max(self._config.retry_after_s, ahead_s / rate)

"""Fair shares between keys: deficit round robin over predicted seconds of service, prompt and output counted.

Deficit round robin (Shreedhar and Varghese, 1995) gives every waiting key `quantum_s` times its weight in each round,
and a key goes on while that lasts. Here the rounds of a key are counted rather than handed out: an account that has
used `u` seconds, divided by its weight, is in round `u / quantum_s`, and the keys of the earliest round go first, in
the order in which they came into it. So nothing is to be done for keys that do not wait.

- A key without requests banks nothing: when it comes back it begins no earlier than the least served key that is there
  (the lift of the virtual token counter, Sheng et al., OSDI'24). What a key uses while it is alone is held against it
  by nobody either, for the same reason.
- A request is charged when it is placed, with what it is predicted to take, so that placements made before any of them
  has ended are fair already; when it ends the charge becomes what it really took.
- With others there, a key that holds more than its part of the prompts that replicas have not computed yet gets no
  more of them placed while together they are `backlog_share` of the tightest TTFT target of the others, on average of
  the open replicas. The rest waits at the router, where keys take turns: a prompt of a lighter key finds at most that
  ahead of it. A replica that has nothing to prefill is never kept idle by this.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contracts.plan import Outcome
from scheduling.cluster_requests import RequestRecord
from scheduling.fairness_config import FairnessConfig

OTHERS = "(others)"
"""The account that keys beyond `max_keys` share."""
_WEIGHT_OF_PAST = 0.95


@dataclass(slots=True, eq=False)
class Account:
    """One key. `used_s` is charged seconds over weight, lifted when the key came back; `served_s` are real seconds
    since the account was opened; `turn` orders the keys of one round. `unfinished` requests have not ended,
    `backlog_s` of predicted prefill is placed and not done. `ttft_s` is the target of its last request."""

    key: str
    weight: float
    used_s: float
    turn: int = 0
    served_s: float = 0.0
    unfinished: int = 0
    backlog_s: float = 0.0
    ttft_s: float = 0.0
    seen_at: float = 0.0
    ended: int = 0
    attained: int = 0


@dataclass(slots=True)
class _Charge:
    account: Account
    prefill_s: float = 0.0
    per_token_s: float = 0.0
    tokens: int = 0
    prefilling: bool = False
    first_token: bool = False

    @property
    def total_s(self) -> float:
        return self.prefill_s + self.per_token_s * self.tokens


@dataclass(slots=True)
class FairShares:
    """The accounts of all keys, at most `max_keys` and one for the others. Only requests that have not ended are
    remembered one by one."""

    config: FairnessConfig
    accounts: dict[str, Account] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    total_backlog_s: float = 0.0
    _charges: dict[str, _Charge] = field(default_factory=dict)
    _level_s: float = 0.0
    _turns: int = 0
    _decode_s: float = 0.0

    def arrived(self, record: RequestRecord, now: float) -> None:
        """A request is there: from now on its key is."""
        account = self._account(record.asked.key if self.config.enabled else "", now)
        if account.unfinished == 0:
            account.used_s = max(account.used_s, self._level())
        account.unfinished += 1
        account.seen_at = now
        account.ttft_s = record.asked.slo.ttft_s
        self._charges[record.request_id] = _Charge(account)

    def placed(self, record: RequestRecord, per_token_s: float, tokens: int) -> None:
        """It is sent out: charge its predicted prefill, and `tokens` of output at its part of the decode steps."""
        charge = self._charges[record.request_id]
        charge.prefill_s, charge.per_token_s, charge.tokens = record.prefill_s, per_token_s, tokens
        charge.prefilling = True
        charge.account.backlog_s += charge.prefill_s
        self.total_backlog_s += charge.prefill_s
        self._use(charge.account, charge.total_s)

    def prefilled(self, record: RequestRecord) -> None:
        """Its prompt is computed. Idempotent."""
        charge = self._charges.get(record.request_id)
        if charge is not None and charge.prefilling:
            charge.prefilling = False
            account = charge.account
            account.backlog_s = max(0.0, account.backlog_s - charge.prefill_s)
            self.total_backlog_s = max(0.0, self.total_backlog_s - charge.prefill_s)

    def taken_back(self, record: RequestRecord) -> None:
        """It lost its place, by no fault of its key: what was charged is given back."""
        self.prefilled(record)
        charge = self._charges.get(record.request_id)
        if charge is not None:
            self._use(charge.account, -charge.total_s)
            charge.prefill_s = charge.per_token_s = 0.0

    def ended(self, record: RequestRecord, outcome: Outcome) -> None:
        """It ended: charge what it took instead of what was predicted, and note whether its targets were met."""
        charge = self._charges.get(record.request_id)
        if charge is None:
            return
        predicted_s = charge.total_s
        charge.tokens = max(0, outcome.output_tokens)
        self._use(charge.account, charge.total_s - predicted_s)
        decode_s = charge.per_token_s * charge.tokens / max(1, record.asked.num_sequences)
        self._decode_s += (1.0 - _WEIGHT_OF_PAST) * (decode_s - self._decode_s)
        if outcome.ttft_s is not None:
            slo = record.asked.slo
            in_time = outcome.tpot_s is None or outcome.tpot_s <= slo.tpot_s
            charge.account.attained += outcome.ttft_s <= slo.ttft_s and in_time
            charge.first_token = True
            self.longest_wait_s = max(self.longest_wait_s, outcome.ttft_s)

    def left(self, record: RequestRecord, now: float) -> None:
        """Nothing of it is left. What was charged stays charged."""
        self.prefilled(record)
        charge = self._charges.pop(record.request_id, None)
        if charge is None:
            return
        account = charge.account
        if not charge.first_token:
            self.longest_wait_s = max(self.longest_wait_s, now - record.due_from)
        self._level_s = self._level()
        account.served_s += charge.total_s
        account.ended += 1
        account.unfinished -= 1
        account.seen_at = now

    def account_of(self, record: RequestRecord) -> Account:
        """Whose share the request is taken from."""
        return self._charges[record.request_id].account

    def comes_before(self, waiting: Iterable[Account], record: RequestRecord) -> bool:
        """Whether it is the turn of another key, of those `waiting`, before the one of `record`."""
        own = self.account_of(record)
        mine = self._place(own.used_s, own.turn)
        return any(other is not own and self._place(other.used_s, other.turn) < mine for other in waiting)

    def is_over(self, record: RequestRecord, num_open: int, now: float) -> bool:
        """Whether its key holds more than its part of what replicas have still to prefill, while that is much."""
        if len(self.accounts) < 2:
            return False
        own = self.account_of(record)
        if own.backlog_s <= 0.0:
            return False
        others = [a for a in self.accounts.values() if a is not own and self._is_there(a, now)]
        if not others:
            return False
        room_s = self.config.backlog_share * num_open * min(account.ttft_s for account in others)
        if self.total_backlog_s < room_s:
            return False
        weights = own.weight + sum(account.weight for account in others if account.backlog_s > 0.0)
        return own.backlog_s / own.weight >= self.total_backlog_s / weights

    def interleave(self, queues: Mapping[str, list[RequestRecord]]) -> list[RequestRecord]:
        """The requests of several keys (by account), each key's in its order, as the rounds would take them."""
        if len(queues) == 1:
            return list(next(iter(queues.values())))
        order: list[RequestRecord] = []
        turns = itertools.count(self._turns + 1)
        heap = []
        for key in sorted(queues):
            account = self.account_of(queues[key][0])
            heap.append((*self._place(account.used_s, account.turn), key, account.used_s, 0, account.weight))
        heapq.heapify(heap)
        while heap:
            number, turn, key, used_s, index, weight = heapq.heappop(heap)
            queue = queues[key]
            order.append(queue[index])
            if index + 1 == len(queue):
                continue
            used_s += self._expected_s(queue[index]) / weight
            after = self._round(used_s)
            heapq.heappush(heap, (after, turn if after == number else next(turns), key, used_s, index + 1, weight))
        return order

    def forget(self, now: float) -> None:
        """Close the accounts of keys that have been away for `forget_s`."""
        gone = [a.key for a in self.accounts.values() if not self._is_there(a, now)]
        for key in gone:
            del self.accounts[key]

    def _is_there(self, account: Account, now: float) -> bool:
        return account.unfinished > 0 or now - account.seen_at < self.config.forget_s

    def _account(self, key: str, now: float) -> Account:
        account = self.accounts.get(key)
        if account is None:
            self.forget(now)
        if account is None and len(self.accounts) >= self.config.max_keys:
            key = OTHERS
            account = self.accounts.get(key)
        if account is None:
            account = Account(key, self.config.weights.get(key, 1.0), 0.0, ttft_s=0.0, seen_at=now)
            self.accounts[key] = account
        return account

    def _level(self) -> float:
        """What the least served key that is there has used; while none is, what it was last."""
        used = min([a.used_s for a in self.accounts.values() if a.unfinished > 0], default=self._level_s)
        self._level_s = max(self._level_s, used)
        return self._level_s

    def _use(self, account: Account, seconds: float) -> None:
        before = self._round(account.used_s)
        account.used_s = max(0.0, account.used_s + seconds / account.weight)
        if self._round(account.used_s) > before:
            self._turns += 1
            account.turn = self._turns

    def _expected_s(self, record: RequestRecord) -> float:
        return record.prefill_s + self._decode_s * record.asked.num_sequences

    def _round(self, used_s: float) -> int:
        return int(used_s / self.config.quantum_s)

    def _place(self, used_s: float, turn: int) -> tuple[int, int]:
        return self._round(used_s), turn


def jain_index(shares: Iterable[float]) -> float:
    """Jain's fairness index, (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has it all. Of nothing: 1."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0.0 else 1.0

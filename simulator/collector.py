"""Writes down what clients see during a run, in memory that grows with classes, keys and windows, not requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.cluster_io import ProposeReplicas
from contracts.errors import ErrorInfo
from contracts.phase import Role
from contracts.plan import Outcome
from contracts.views import ReplicaView
from simulator.clock import Clock
from simulator.flight import Flight
from simulator.refusals import Refusals
from simulator.report import ClassReport, Clocks, RoleChange, Window
from simulator.statistics import Sketch, Summary

MAX_WINDOWS = 4096
MAX_CHANGES = 4096


@dataclass(slots=True)
class ClockStats:
    """Latencies by one clock."""

    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    attained: int = 0
    ttft_attained: int = 0
    tpot_attained: int = 0

    def add(self, ttft_s: float, tpot_s: float | None, ttft_target_s: float, tpot_target_s: float) -> bool:
        """Take one finished request; returns whether it met both targets."""
        self.ttft.add(ttft_s)
        if tpot_s is not None:
            self.tpot.add(tpot_s)
        in_ttft, in_tpot = ttft_s <= ttft_target_s, tpot_s is None or tpot_s <= tpot_target_s
        self.ttft_attained += in_ttft
        self.tpot_attained += in_tpot
        self.attained += in_ttft and in_tpot
        return in_ttft and in_tpot

    def take(self, other: ClockStats) -> None:
        """What another one counted too."""
        self.ttft.take(other.ttft)
        self.tpot.take(other.tpot)
        self.attained += other.attained
        self.ttft_attained += other.ttft_attained
        self.tpot_attained += other.tpot_attained

    def clocks(self, ended: int) -> Clocks:
        """As reported; `ended` requests in all."""
        of = max(1, ended)
        return Clocks(
            ttft_s=self.ttft.summary(),
            tpot_s=self.tpot.summary(),
            attained=self.attained / of,
            ttft_attained=self.ttft_attained / of,
            tpot_attained=self.tpot_attained / of,
            met_p50=self.attained / of >= 0.5,
            met_p90=self.attained / of >= 0.9,
            met_p99=self.attained / of >= 0.99,
        )


@dataclass(slots=True)
class ClassStats:
    """One class, or all of them."""

    ended: int = 0
    finished: int = 0
    usual: ClockStats = field(default_factory=ClockStats)
    ecoserve: ClockStats = field(default_factory=ClockStats)

    def take(self, other: ClassStats) -> None:
        """What another one counted too."""
        self.ended += other.ended
        self.finished += other.finished
        self.usual.take(other.usual)
        self.ecoserve.take(other.ecoserve)

    def report(self, name: str) -> ClassReport:
        """As reported."""
        return ClassReport(
            name=name,
            arrived=self.ended,
            finished=self.finished,
            usual=self.usual.clocks(self.ended),
            ecoserve=self.ecoserve.clocks(self.ended),
        )


@dataclass(slots=True)
class KeyStats:
    """One key's share. Tokens count prompt and output."""

    asked_tokens: int = 0
    served_tokens: int = 0
    ended: int = 0
    attained: int = 0


class Collector:
    """Implements `simulator.observer.Observer`."""

    def __init__(self, clock: Clock, warmup_s: float, window_s: float) -> None:
        self._clock = clock
        self._warmup_s = warmup_s
        self._window_s = window_s
        self.classes: dict[str, ClassStats] = {}
        self.keys: dict[str, KeyStats] = {}
        self.itl = Sketch()
        self.first_gap = Sketch()
        self.first_gap_ecoserve = Sketch()
        self.longest_gap = Sketch()
        self.e2e = Sketch()
        self.switch_wait = Sketch()
        self.queue = Sketch()
        self.exposed = Sketch()
        self.prediction_error = Sketch()
        self.prediction_total = 0.0
        self.longest_wait_s = 0.0
        self.refused: Counter[str] = Counter()
        self.refusals = Refusals()
        self.layouts: Counter[str] = Counter()
        self.placed_again = 0
        self.output_tokens = 0
        self.roles: list[RoleChange] = []
        self.proposals: list[tuple[float, int, str]] = []
        self.num_ended = 0
        self._role_of: dict[str, Role] = {}
        self._windows: dict[int, list[int]] = {}
        self.gap, self.gaps = self.itl.add, self.itl.extend
        self.on_proposal: Callable[[ProposeReplicas], None] = _ignore

    def ended(self, flight: Flight, outcome: Outcome | None, error: ErrorInfo | None) -> None:
        """A request has ended, with an outcome or an error."""
        self.num_ended += 1
        if flight.first_gap_s is not None:
            self.first_gap.add(flight.first_gap_s)
            wait_s = 0.0 if outcome is None else outcome.switch_wait_s or 0.0
            self.first_gap_ecoserve.add(flight.first_gap_s - wait_s)
        arrival = flight.arrival
        if arrival.at_s < self._warmup_s:
            return
        kind = arrival.kind
        group, key = self.classes.get(kind.name), self.keys.get(arrival.key)
        if group is None:
            group = self.classes[kind.name] = ClassStats()
        if key is None:
            key = self.keys[arrival.key] = KeyStats()
        key.asked_tokens += len(arrival.prompt) + arrival.output_tokens
        key.ended += 1
        group.ended += 1
        attained = False
        if outcome is None:
            self.refused[str(error.status if error is not None else 0)] += 1
            self.refusals.add(error)
            first_s = flight.first_s
            self.longest_wait_s = max(self.longest_wait_s, (first_s or self._clock.now) - arrival.at_s)
        else:
            attained = self._finished(flight, outcome, group, key)
        window = self._windows.setdefault(int(arrival.at_s / self._window_s), [0, 0])
        window[0] += 1
        window[1] += attained
        key.attained += attained
        if len(self._windows) > MAX_WINDOWS:
            self._widen()

    def _finished(self, flight: Flight, outcome: Outcome, group: ClassStats, key: KeyStats) -> bool:
        arrival, usage, ttft_s, tpot_s = flight.arrival, flight.usage, outcome.ttft_s, outcome.tpot_s
        assert ttft_s is not None
        slo = arrival.kind.slo
        wait_s = outcome.switch_wait_s or 0.0
        more = flight.num_tokens - 1
        after_s = None if tpot_s is None else max(0.0, tpot_s - wait_s / more)
        group.finished += 1
        attained = group.usual.add(ttft_s, tpot_s, slo.ttft_s, slo.tpot_s)
        group.ecoserve.add(ttft_s + wait_s, after_s, slo.ttft_s, slo.tpot_s)
        self.switch_wait.add(wait_s)
        self.e2e.add(self._clock.now - arrival.at_s)
        self.output_tokens += flight.num_tokens
        self.longest_wait_s = max(self.longest_wait_s, ttft_s)
        key.served_tokens += len(arrival.prompt) + flight.num_tokens
        if more:
            self.longest_gap.add(flight.longest_gap_s)
        if usage is not None:
            self.queue.add(usage.queue_s)
        if outcome.handoff is not None:
            self.exposed.add(outcome.handoff.exposed_s)
        plan = flight.plan
        if plan is not None:
            self.layouts[plan.layout.value] += 1
            self.placed_again += flight.attempt > 1
            if flight.attempt == 1 and ttft_s > 0.0:
                error = (plan.prediction.ttft_s - ttft_s) / ttft_s
                self.prediction_error.add(abs(error))
                self.prediction_total += error
        return attained

    def everything(self) -> ClassStats:
        """All classes together."""
        everything = ClassStats()
        for stats in self.classes.values():
            everything.take(stats)
        return everything

    def detach(self) -> Collector:
        """Itself without the run that it was told by, so that it can go to another process."""
        self._clock, self.on_proposal = Clock(), _ignore
        return self

    def take(self, other: Collector) -> None:
        """What another one was told too: of another part of the same requests."""
        for name, stats in other.classes.items():
            self.classes.setdefault(name, ClassStats()).take(stats)
        for name, key in other.keys.items():
            known = self.keys.setdefault(name, KeyStats())
            for count in ("asked_tokens", "served_tokens", "ended", "attained"):
                setattr(known, count, getattr(known, count) + getattr(key, count))
        for sketch in (
            "itl",
            "first_gap",
            "first_gap_ecoserve",
            "longest_gap",
            "e2e",
            "switch_wait",
            "queue",
            "exposed",
            "prediction_error",
        ):
            getattr(self, sketch).take(getattr(other, sketch))
        self.refused += other.refused
        self.refusals.take(other.refusals)
        self.layouts += other.layouts
        for total in ("prediction_total", "placed_again", "output_tokens", "num_ended"):
            setattr(self, total, getattr(self, total) + getattr(other, total))
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        self.roles = sorted([*self.roles, *other.roles], key=lambda change: (change.at_s, change.replica_id))
        self.proposals = sorted([*self.proposals, *other.proposals])
        while self._window_s != other._window_s:
            min(self, other, key=lambda seen: seen._window_s)._widen()
        for index, (arrived, attained) in other._windows.items():
            window = self._windows.setdefault(index, [0, 0])
            window[0] += arrived
            window[1] += attained

    def itl_s(self, first: Sketch) -> Summary:
        """All gaps, the first ones of the streams by one of the two clocks."""
        gaps = Sketch()
        gaps.take(self.itl)
        gaps.take(first)
        return gaps.summary()

    def viewed(self, view: ReplicaView) -> None:
        """A replica joined, or has another role than before."""
        if self._role_of.get(view.replica_id) is not view.role and len(self.roles) < MAX_CHANGES:
            self.roles.append(RoleChange(self._clock.now, view.replica_id, view.role.value))
        self._role_of[view.replica_id] = view.role

    def proposed(self, proposal: ProposeReplicas) -> None:
        """The cluster core proposes another size."""
        if len(self.proposals) < MAX_CHANGES:
            self.proposals.append((self._clock.now, proposal.change, proposal.reason))
        self.on_proposal(proposal)

    def windows(self) -> tuple[Window, ...]:
        """In order of time."""
        return tuple(
            Window(index * self._window_s, arrived, attained)
            for index, (arrived, attained) in sorted(self._windows.items())
        )

    def recovery_s(self, below: float) -> float:
        """The longest time for which the attainment by arrival windows stayed below a share."""
        longest = run = 0
        last = -2
        for index, (arrived, attained) in sorted(self._windows.items()):
            low = attained < below * arrived
            run = (run + 1 if index == last + 1 else 1) if low else 0
            last, longest = index, max(longest, run)
        return longest * self._window_s

    def _widen(self) -> None:
        """Windows of twice the width: their number stays bounded however long the run."""
        self._window_s *= 2.0
        merged: dict[int, list[int]] = {}
        for index, (arrived, attained) in self._windows.items():
            window = merged.setdefault(index // 2, [0, 0])
            window[0] += arrived
            window[1] += attained
        self._windows = merged


def _ignore(proposal: ProposeReplicas) -> None:
    """Nobody follows proposals."""

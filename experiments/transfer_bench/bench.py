"""Rows: a kind and the yardstick hand over in turns.

What was disturbed is measured again, what does not fit into the time left is left out, and both are said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from experiments.network.lan import Host
from experiments.transfer_bench.end import Shape
from experiments.transfer_bench.figures import DISTURBED_SHARE, Figures, Row, best, figures, foreign_share
from experiments.transfer_bench.pair import EndError, Kind, Pair, Sample
from experiments.transfer_bench.report import Report
from experiments.transfer_bench.tables import Stride

MAX_EXTRA = 2
WARM_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where the two ends are: `hosts` of a network, or this one. `bytes_per_s`: what its link can carry, if shaped."""

    name: str
    hosts: tuple[Host | None, Host | None] = (None, None)
    bytes_per_s: float | None = None


@dataclass(slots=True)
class Bench:
    """What all rows share. `ends_at`: no row begins that would last longer (monotonic clock)."""

    report: Report
    logs: Path
    ends_at: float
    num_cores: int = field(default_factory=lambda: os.cpu_count() or 1)

    def left_s(self) -> float:
        """Time left."""
        return self.ends_at - time.monotonic()

    def fits(self, seconds: float, what: str) -> bool:
        """Whether so much time is left; says in the report what was left out."""
        if seconds <= self.left_s():
            return True
        self.report.note(
            f"{what}: left out, it takes about {seconds:.0f} s and {max(0.0, self.left_s()):.0f} s are left"
        )
        return False

    @contextmanager
    def pair(self, kind: Kind, shape: Shape, place: Place) -> Iterator[Running | None]:
        """A pair that has handed over once, with the same bytes on both sides; None, noted, where it cannot be."""
        with ExitStack() as stack:
            running = None
            try:
                running = Running(stack.enter_context(Pair(kind, shape, place.hosts, self.logs)))
            except EndError as error:
                self.report.note(f"{place.name}, {kind.name}: not measured, {error}")
            yield running

    def measure(
        self, row: tuple[Place, str], running: Running, beside: Running | None, count: int, repeats: int
    ) -> None:
        """`repeats` hand-offs of `count` blocks of a kind and of its yardstick, in turns, and their row."""
        place, what = row
        own: list[Sample] = []
        others: list[Sample] = []
        while len(own) < repeats + MAX_EXTRA:
            if beside is not None:
                others.append(beside.hand_over(count))
            own.append(running.hand_over(count))
            quiet = [sample for sample in own if foreign_share(sample, self.num_cores) <= DISTURBED_SHARE]
            if len(quiet) >= repeats or (len(own) >= repeats and self.left_s() < 0.0):
                break
        self.report.add(
            Row(
                link=place.name,
                kind=running.pair.kind.name,
                what=what,
                own=self._figures(own, repeats),
                yardstick=self._figures(others, repeats) if others else None,
                link_bytes_per_s=place.bytes_per_s,
            )
        )

    def _figures(self, samples: Sequence[Sample], repeats: int) -> Figures:
        return figures(best(samples, repeats, self.num_cores), self.num_cores)


class Running:
    """A connected pair and where in its pools the next hand-off lies."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.scatter(False)
        self.check()

    def scatter(self, scattered: bool) -> None:
        """Whether the next tables are shuffled blocks."""
        blocks = self.pair.shape.num_blocks
        self._giver = Stride(blocks, scattered=scattered, seed=3)
        self._taker = Stride(blocks, scattered=scattered, seed=5)
        self._taker.take(min(blocks // 2, WARM_BLOCKS))

    def hand_over(self, count: int) -> Sample:
        """The next `count` blocks."""
        return self.pair.hand_over(self._giver.take(count), self._taker.take(count))

    def check(self) -> None:
        """Hand over a little and compare both sides' bytes. Raises `EndError`."""
        count = min(self.pair.shape.num_blocks, WARM_BLOCKS)
        tables = self._giver.take(count), self._taker.take(count)
        self.pair.hand_over(*tables)
        self.pair.check(*tables)

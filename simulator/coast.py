"""Stretches of decode steps of a simulated replica in which every stream merely goes on: known ahead, run in one go.

Between two events that a replica hears, its steps are a recurrence: the same streams, one token longer each time. So
their ends are computed when the stretch begins, and the core is told of them (`scheduling.coasting`) when somebody next
looks: at a view, at a message, or where the stretch ends because a stream does. What anybody sees is what step after
step would show; a step that is run in this way counts as the two events that it stands for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from contracts.batch import Batch
from contracts.phase import Phase
from contracts.replica_io import ReplicaEvent
from scheduling.coasting import UNMOVED, coast, coasts, quiet_until, steps_ahead
from scheduling.replica_core import ReplicaCore
from simulator.clock import Clock
from simulator.engine import SimulatedEngine
from simulator.workload import FILLER

FEWEST = 2
MOST = 64
"""Steps of one stretch: what is computed ahead is of no use when a prompt comes."""


class _Stretch:
    """Steps that end at `ends_at`, the last of them in the usual way. `done` have ended as far as the core knows."""

    __slots__ = ("done", "durations_s", "ends_at", "sequence_ids", "spreads", "tokens")

    def __init__(self, engine: SimulatedEngine, batch: Batch, began_at: float, turn_s: float, steps: int) -> None:
        self.done = 0
        self.durations_s, self.spreads = engine.durations_s(batch, steps)
        self.ends_at = list(accumulate([duration_s + turn_s for duration_s in self.durations_s], initial=began_at))[1:]
        self.sequence_ids = [chunk.sequence_id for chunk in batch.chunks]
        self.tokens = (FILLER,) * len(batch.chunks)

    def cut(self, steps: int, engine: SimulatedEngine) -> None:
        """Keep so many steps."""
        if steps < len(self.ends_at):
            engine.give_back(self.spreads[steps:])
            del self.spreads[steps:], self.durations_s[steps:], self.ends_at[steps:]


class Coaster:
    """The stretches of one replica. Between two steps `turn_s` goes by. `step_done(batch, duration_s)` ends a step in
    the usual way; `went_on(sequence_ids, ended_at)` is told what came of a stretch so far."""

    def __init__(
        self,
        engine: SimulatedEngine,
        core: ReplicaCore,
        clock: Clock,
        turn_s: float,
        step_done: Callable[[Batch, float], None],
        went_on: Callable[[Sequence[str], Sequence[float]], None],
    ) -> None:
        self._engine = engine
        self._core = core
        self._clock = clock
        self._turn_s = turn_s
        self._step_done = step_done
        self._went_on = went_on
        self._stretch: _Stretch | None = None

    def begin(self, batch: Batch) -> bool:
        """Run the step that begins now, and those that follow it, as a stretch; false if that is not worth it."""
        if batch.phase is not Phase.DECODE or not coasts(self._core.state):
            return False
        most = min(MOST, self._engine.steps_ahead(batch))
        if most >= FEWEST:
            most = min(most, steps_ahead(self._core.state, (FILLER,) * len(batch.chunks)))
        if most < FEWEST:
            return False
        stretch = self._stretch = _Stretch(self._engine, batch, self._clock.now, self._turn_s, most + 1)
        stretch.cut(bisect_left(stretch.ends_at, quiet_until(self._core.state, self._clock.now)) + 1, self._engine)
        self._engine.count_decodes(stretch.durations_s[:1], len(stretch.tokens))
        self._clock.at(stretch.ends_at[-1], self._over, stretch)
        return True

    def catch_up(self) -> None:
        """Whoever looks is to see what step after step would have led to."""
        stretch = self._stretch
        if stretch is None:
            return
        until = min(bisect_right(stretch.ends_at, self._clock.now, stretch.done), len(stretch.ends_at) - 1)
        if until == stretch.done:
            return
        ended_at, durations_s = stretch.ends_at[stretch.done : until], stretch.durations_s[stretch.done : until + 1]
        coast(self._core.state, stretch.tokens, durations_s[:-1], ended_at)
        self._engine.count_decodes(durations_s[1:], len(stretch.tokens))
        stretch.done = until
        self._clock.count(2 * len(ended_at) - 1)
        self._went_on(stretch.sequence_ids, ended_at)

    def heard(self, event: ReplicaEvent, *, acted: bool) -> None:
        """The core was told of something, and answered or not: unless nothing follows from it, the stretch ends."""
        if self._stretch is not None and (acted or not isinstance(event, UNMOVED) or not coasts(self._core.state)):
            self.end()

    def end(self) -> None:
        """From the step in flight on, one comes after the other again."""
        self.catch_up()
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            done = stretch.done
            self._engine.give_back(stretch.spreads[done + 1 :])
            self._clock.at(stretch.ends_at[done], self._step_done, self._batch, stretch.durations_s[done])

    def _over(self, stretch: _Stretch) -> None:
        if stretch is not self._stretch:
            self._clock.count(-1)
            return
        self.catch_up()
        self._stretch = None
        self._step_done(self._batch, stretch.durations_s[-1])

    @property
    def _batch(self) -> Batch:
        step = self._core.state.in_flight
        assert step is not None
        return step.batch

"""A long profile of an engine: every point of a grid, several times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from contracts.engine import Engine
from scheduling.config import ReplicaCoreConfig
from scheduling.profile_grid import ProfileGrid, profile_grid
from scheduling.step_shape import StepShape


class Profiler:
    """An engine with all streams of the grid in its cache. One thread; `close` ends it."""

    def __init__(self, engine: Engine, config: ReplicaCoreConfig, max_decodes: int = 16) -> None:
        self.grid: ProfileGrid = profile_grid(
            engine.kv_layout,
            num_blocks=engine.num_blocks,
            max_context=engine.spec.max_context,
            max_chunk=config.max_chunk,
            max_decodes=min(max_decodes, config.max_running),
        )
        self._engine = engine
        self._index = 0
        for batch in self.grid.fill():
            engine.step(batch)
            self._index += 1

    def once(self) -> Iterator[tuple[int, float]]:
        """Every point once, in the grid's order: `(point, seconds)`."""
        for point in range(len(self.grid.points)):
            batch = self.grid.step(point, self._index)
            began = time.perf_counter()
            self._engine.step(batch)
            self._index += 1
            yield point, time.perf_counter() - began

    def measure(self, repeats: int, round_done: Callable[[int], None]) -> list[tuple[StepShape, list[float]]]:
        """The seconds of `repeats` steps of each point, after one round that does not count: rounds take turns, so
        that a disturbance of seconds does not hit all steps of one point."""
        for _ in self.once():
            pass
        durations: list[list[float]] = [[] for _ in self.grid.points]
        for number in range(repeats):
            for point, duration_s in self.once():
                durations[point].append(duration_s)
            round_done(number + 1)
        return [(self.grid.shape(point), found) for point, found in enumerate(durations)]

    def close(self) -> None:
        """End the streams and the engine."""
        self._engine.step(self.grid.end(self._index))
        self._engine.close()

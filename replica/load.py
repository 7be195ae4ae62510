"""From a replica's configuration to an engine that is ready for its first step, and what a step of it costs.

Runs on the engine's thread. The back end is imported when it is chosen: a fake replica never loads torch.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from contracts.batch import Batch
from contracts.engine import Engine
from contracts.views import StepCost
from replica.config import FakeConfig, ReplicaConfig
from scheduling.config import ReplicaCoreConfig
from scheduling.profile_plan import fit_step_cost, profile_plan, shape_of

log = logging.getLogger("phaseserve.replica")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, and the start value of its step-time predictor."""

    engine: Engine
    cost: StepCost


def load_engine(config: ReplicaConfig) -> LoadedEngine:
    """Build and warm up. Raises `ModelError` and `ConfigError`, and `EngineFailure` when no step works."""
    if config.kind == "fake":
        return _load_fake(config.fake)
    from engine.build import build_engine

    engine = build_engine(config.engine)
    return LoadedEngine(engine, measure_cost(engine, config.core))


def measure_cost(engine: Engine, config: ReplicaCoreConfig) -> StepCost:
    """Run the short profile on a fresh engine; leaves no sequence in it."""
    plan = profile_plan(
        engine.kv_layout,
        num_blocks=engine.num_blocks,
        max_context=engine.spec.max_context,
        max_chunk=config.max_chunk,
        max_decodes=config.max_running,
    )
    samples = []
    for batch in plan:
        began = time.perf_counter()
        engine.step(batch)
        samples.append((shape_of(batch), time.perf_counter() - began))
    measured = samples[1:-1]  # the first step pays for what happens once, the last one only ends sequences
    log.info("%d profile steps took %.2f s", len(samples), sum(duration_s for _, duration_s in samples))
    return fit_step_cost(measured)


class Pace:
    """Makes the parts of a step end when they should: what was computed meanwhile, and a wait that was too long, are
    taken off the next wait."""

    def __init__(self) -> None:
        self._due = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._due = time.perf_counter()

    def wait(self, seconds: float) -> None:
        """So long after the last part was due."""
        self._due += seconds
        time.sleep(max(0.0, self._due - time.perf_counter()))


def _load_fake(config: FakeConfig) -> LoadedEngine:
    from engine.fake import FakeEngine, fake_layout, fake_spec

    spec = fake_spec(
        vocab_size=config.vocab_size,
        max_context=config.max_context,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    pace = Pace()

    def step_seconds(batch: Batch) -> float:
        pace.begin()
        return shape_of(batch).predict_s(config.cost) if config.delays else 0.0

    engine = FakeEngine(
        spec,
        fake_layout(spec, block_size=config.block_size, dtype=config.dtype),
        config.num_blocks,
        step_seconds=step_seconds,
        sleep=pace.wait,
        eos_every=config.eos_every,
        first_read_bytes=config.first_read_bytes,
    )
    if config.failing_token >= 0:
        engine.fail_rows_on(lambda chunk: config.failing_token in chunk.token_ids)
    return LoadedEngine(engine, config.cost)

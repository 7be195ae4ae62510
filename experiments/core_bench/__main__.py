"""Prints median and P99 of `ReplicaCore.handle(StepDone)`, which applies a step and makes the next batch."""

from __future__ import annotations

import argparse
from time import perf_counter

from contracts.batch import Batch, SampledToken, StepResult
from contracts.kv import KVLayout
from contracts.phase import Role
from contracts.replica_io import LeaseGranted, ReplicaAction, RequestArrived, RunStep, StepDone
from contracts.request import Request, SamplingParams
from contracts.views import StepCost
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_core import ReplicaCore

LAYOUT = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype="float32")
COST = StepCost(a0=0.012, a1=0.0016, b0=2e-8, b1=1e-8, b2=1.5e-6, b3=0.0004)


def _result(batch: Batch) -> StepResult:
    sampled = tuple(SampledToken(chunk.sequence_id, 7) for chunk in batch.chunks if chunk.samples)
    return StepResult(step_index=batch.step_index, sampled=sampled)


def _next_batch(actions: list[ReplicaAction]) -> Batch | None:
    return next((action.batch for action in actions if isinstance(action, RunStep)), None)


def _request(index: int, prompt: int, max_tokens: int) -> Request:
    tokens = tuple((index * 7919 + i) % 40_000 for i in range(prompt))
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Request(request_id=f"request-{index}", prompt_token_ids=tokens, sampling=sampling)


def time_handles(running: int, waiting: int, role: Role, steps: int) -> list[float]:
    """Seconds of `steps` calls with `running` decodes, and `waiting` prompts behind them that cannot start."""
    config = ReplicaCoreConfig(max_running=running, max_waiting=running + waiting + 1)
    core = ReplicaCore(config, role, LAYOUT, 64 * running, 8192, (2,), COST)
    now = 0.0
    batch = None
    for index in range(running + waiting):
        length = 128 if index < running else 64
        actions = core.handle(RequestArrived(_request(index, length, steps + 400)), now)
        batch = _next_batch(actions) or batch
    core.handle(LeaseGranted(1e9), now)
    times: list[float] = []
    while len(times) < steps:
        assert batch is not None
        steady = len(batch.chunks) == running and all(len(chunk.token_ids) == 1 for chunk in batch.chunks)
        duration = 0.05
        now += duration
        event = StepDone(_result(batch), duration)
        began = perf_counter()
        actions = core.handle(event, now)
        elapsed = perf_counter() - began
        batch = _next_batch(actions)
        if steady:
            times.append(elapsed)
    return times


def main() -> None:
    """One line per role, queue and number of running decodes."""
    parser = argparse.ArgumentParser(prog="python -m experiments.core_bench", description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="measured calls per line")
    parser.add_argument("--running", type=int, nargs="+", default=[16, 64, 256], help="running decodes")
    options = parser.parse_args()
    print(f"{'role':<12}{'running':>8}{'waiting':>8}{'p50 ms':>9}{'p99 ms':>9}")
    for role in (Role.ALTERNATING, Role.MIXED):
        for waiting in (0, 64):
            for running in options.running:
                times = sorted(time_handles(running, waiting, role, options.steps))
                p50, p99 = times[len(times) // 2], times[int(0.99 * (len(times) - 1))]
                print(f"{role:<12}{running:>8}{waiting:>8}{p50 * 1e3:>9.3f}{p99 * 1e3:>9.3f}")


if __name__ == "__main__":
    main()

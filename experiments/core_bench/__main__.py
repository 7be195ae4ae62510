"""Prints median and P99 of `ReplicaCore.handle(StepDone)`, which applies a step and makes the next batch.

With `--cluster` those of `ClusterCore.handle` instead, for one arrival, one view and one passing of time.

"wall" is what a caller waits; "cpu" leaves out the time that this thread did not run because others did.
"""

from __future__ import annotations

from time import perf_counter, thread_time

from contracts.batch import Batch, SampledToken, StepResult
from contracts.kv import KVLayout
from contracts.phase import Role
from contracts.replica_io import LeaseGranted, ReplicaAction, RequestArrived, RunStep, StepDone
from contracts.request import Request, SamplingParams
from contracts.views import StepCost
from experiments.core_bench.cluster import FLEETS, report
from experiments.load.command_line import count, end, parser_of
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


def time_handles(running: int, waiting: int, role: Role, steps: int) -> list[tuple[float, float]]:
    """(wall, cpu) seconds of `steps` calls with `running` decodes, and `waiting` prompts that have no free slot."""
    config = ReplicaCoreConfig(max_running=running, max_waiting=running + waiting + 1)
    core = ReplicaCore(config, role, LAYOUT, 64 * running, 8192, (2,), COST)
    now = 0.0
    batch = None
    for index in range(running + waiting):
        length = 112 + index % 32 if index < running else 64
        actions = core.handle(RequestArrived(_request(index, length, steps + 400)), now)
        batch = _next_batch(actions) or batch
    core.handle(LeaseGranted(1e9), now)
    times: list[tuple[float, float]] = []
    while len(times) < steps:
        assert batch is not None
        steady = len(batch.chunks) == running and all(len(chunk.token_ids) == 1 for chunk in batch.chunks)
        duration = 0.05
        now += duration
        event = StepDone(_result(batch), duration)
        began_wall, began_cpu = perf_counter(), thread_time()
        actions = core.handle(event, now)
        elapsed = (perf_counter() - began_wall, thread_time() - began_cpu)
        batch = _next_batch(actions)
        if steady:
            times.append(elapsed)
    return times


def _quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    return "".join(f"{ordered[int(q * (len(ordered) - 1))] * 1e3:>10.3f}" for q in (0.5, 0.99))


def main() -> None:
    """One line per role, queue and number of running decodes."""
    parser = parser_of("core_bench", __doc__)
    parser.add_argument("--steps", type=count, default=400, help="measured calls per line")
    parser.add_argument("--running", type=count, nargs="+", default=[16, 64, 256], help="running decodes")
    parser.add_argument("--cluster", action="store_true", help="the cluster core instead")
    parser.add_argument("--sizes", type=count, nargs="+", default=[8, 64, 512, 4096], help="replicas (--cluster)")
    parser.add_argument("--fleets", nargs="+", default=FLEETS, choices=FLEETS, help="kinds of fleet (--cluster)")
    parser.add_argument("--events", type=count, default=100, help="measured events of each kind (--cluster)")
    options = parser.parse_args()
    if options.cluster:
        report(options.sizes, options.fleets, options.events)
        return
    columns = "".join(f"{name:>10}" for name in ("wall p50", "wall p99", "cpu p50", "cpu p99"))
    print(f"{'role':<12}{'running':>8}{'waiting':>8}{columns}  (ms)")
    for role in (Role.ALTERNATING, Role.MIXED):
        for waiting in (0, 64):
            for running in options.running:
                times = time_handles(running, waiting, role, options.steps)
                wall, cpu = _quantiles([w for w, _ in times]), _quantiles([c for _, c in times])
                print(f"{role:<12}{running:>8}{waiting:>8}{wall}{cpu}")


if __name__ == "__main__":
    end("core_bench", main)

"""`python -m experiments.router_bench.peers`: our router beside sglang's, with fake back ends of the same step.

sglang-router (Rust) speaks HTTP to its workers and passes their bytes on; it neither tokenises nor detokenises in that
mode, ours does both. Each token is timed from the end of its step at the back end to its arrival at the client: in the
worker's text for sglang-router and for a client without any router, at the tap for ours. `--sglang-python` is an
interpreter with `sglang-router` installed; without it only ours and the bare worker are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from contracts.phase import Role
from engine.checkpoint.resolve import resolve_model
from experiments.engine_bench.server import free_port
from experiments.load.machine import cpu_seconds, describe_machine
from experiments.router_bench.added import added_by_router, read_tap
from experiments.router_bench.report import row
from experiments.router_bench.stack import (
    Setup,
    announced,
    answers,
    process_of,
    running_replica,
    running_router,
    running_tap,
)
from experiments.router_bench.streams import Load, Seen, http_load
from experiments.router_bench.tap import Passed
from experiments.router_bench.worker import MODEL, READY_MARK

NAME_LENGTH = len("bench-0000-0000")


@dataclass(frozen=True, slots=True)
class Measured:
    """One router under one load. Seconds; `cpu_s` of the router's process for `tokens` tokens in `elapsed_s`."""

    name: str
    ttft_s: list[float]
    late_s: list[float]
    cpu_s: float
    tokens: int
    elapsed_s: float


def main() -> None:
    """Measure each router with the same loads, in turns, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.router_bench.peers", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--routers", type=int, nargs="+", default=[1], help="of ours on one port, with a replica each")
    parser.add_argument("--sglang-python", type=Path)
    words = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        for streams in words.streams:
            setup = Setup(streams, words.step_ms / 1000, words.model, Role.MIXED)
            load = Load(streams, words.rounds, words.max_tokens, words.max_tokens * setup.step_s / streams)
            print(f"\n{streams} streams x {load.rounds}, {load.max_tokens} tokens, step {words.step_ms:g} ms")
            show(straight(setup, load, Path(folder)))
            for routers in words.routers:
                show(ours(setup, load, Path(folder), routers))
            if words.sglang_python is not None:
                show(sglang(setup, load, Path(folder), words.sglang_python))


def show(measured: Measured) -> None:
    """One router's lines."""
    print(f"{measured.name}:")
    row("TTFT less the wait for a step", measured.ttft_s)
    row("token, step's end to client", measured.late_s)
    per_token = measured.cpu_s / measured.tokens * 1e6
    print(f"  CPU {per_token:.0f} us a token, {measured.cpu_s / measured.elapsed_s:.0%} of a core; ", end="")
    print(f"{measured.tokens / measured.elapsed_s:.0f} tokens/s")


def straight(setup: Setup, load: Load, logs: Path) -> Measured:
    """The client at the worker itself: what client and worker cost without any router."""
    with running_worker(setup, logs) as url:
        return _stamped("no router", asyncio.run(http_load(load, url, MODEL)), 0.0)


def ours(setup: Setup, load: Load, logs: Path, routers: int) -> Measured:
    """PhaseServe's routers, on one port, before as many mixed replicas with the fake engine."""
    files = resolve_model(setup.model)
    notes = [logs / f"peers-tap{i}.msgpack" for i in range(routers)]
    with ExitStack() as replicas, ExitStack() as others:
        endpoints = [replicas.enter_context(running_replica(setup, logs, f"bench{i}")) for i in range(routers)]
        taps = [others.enter_context(running_tap(*pair)) for pair in zip(endpoints, notes, strict=True)]
        port = free_port()
        stacks = [others.enter_context(running_router(setup, taps, port, logs, i, routers)) for i in range(routers)]
        before = sum(cpu_seconds(stack.router_pid) for stack in stacks)
        seen = asyncio.run(http_load(load, stacks[0].url, files.name))
        cpu_s = sum(cpu_seconds(stack.router_pid) for stack in stacks) - before
        others.close()
        passed = [msgspec.msgpack.decode(note.read_bytes(), type=list[Passed]) for note in notes]
    tokenizer = Tokenizer.from_file(str(files.tokenizer_file))
    tokens = {name: sequence for one in passed for name, sequence in read_tap(one, NAME_LENGTH).items()}
    added = added_by_router(seen, tokens, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    count = sum(len(sequence.tokens) for sequence in tokens.values())
    return Measured(
        f"PhaseServe, {routers} router(s)", added.ttft_s, added.first_s + added.later_s, cpu_s, count, _elapsed_s(seen)
    )


def sglang(setup: Setup, load: Load, logs: Path, python: Path) -> Measured:
    """sglang-router before one worker."""
    with running_worker(setup, logs) as worker, running_sglang(python, worker, logs) as (url, pid):
        before = cpu_seconds(pid)
        seen = asyncio.run(http_load(load, url, MODEL))
        return _stamped("sglang-router", seen, cpu_seconds(pid) - before)


def _stamped(name: str, seen: list[Seen], cpu_s: float) -> Measured:
    late_s, ttft_s = [], []
    for request in seen:
        came, text = request.events[-1][1].split("/", 1)
        late = [at_s - float(word) for (at_s, _), word in zip(request.events, text.split(), strict=True)]
        late_s += late
        ttft_s.append(float(came) - request.sent_s + late[0])
    return Measured(name, ttft_s, late_s, cpu_s, len(late_s), _elapsed_s(seen))


def _elapsed_s(seen: list[Seen]) -> float:
    return max(request.events[-1][0] for request in seen) - min(request.sent_s for request in seen)


@contextmanager
def running_worker(setup: Setup, logs: Path) -> Iterator[str]:
    """The fake worker. Yields its URL."""
    argv = ["-m", "experiments.router_bench.worker", "--step-ms", str(setup.step_s * 1000)]
    with process_of(argv, logs / "worker.log") as process:
        yield announced(process, READY_MARK, "the worker")


@contextmanager
def running_sglang(python: Path, worker: str, logs: Path) -> Iterator[tuple[str, int]]:
    """sglang-router before `worker`. Yields its URL and process id."""
    port = free_port()
    argv = ["-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--worker-urls", worker, "--policy", "round_robin", "--prometheus-port", str(free_port())]
    with process_of(argv, logs / "sglang.log", python=str(python)) as process:
        deadline = time.monotonic() + 60
        while not answers(f"http://127.0.0.1:{port}/readiness"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"sglang-router did not become ready, see {logs / 'sglang.log'}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid


if __name__ == "__main__":
    main()

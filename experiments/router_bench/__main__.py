"""`python -m experiments.router_bench`: what the router adds to TTFT and to each token, with the fake engine.

A tap between router and replica notes when frames pass, so what the router adds is a difference of two times of the
same request, not of two runs. A second run without any router is shown beside it.

Added to a token: from the moment its frame reaches the tap to the moment the client has read the text it completes.
The way from the tap to the router, the client's own reading and, because all tokens of a step come in one frame, the
work on the other streams of that frame are in it. Added to TTFT: the same for the first token, and from the client's
sending the request to its reaching the tap. CPU a token: all CPU time of the router's process during the load, its
requests and idle heartbeats included, over the tokens. With `--replicas 2` the replicas alternate (one `alternating`
macro instance, the default deployment), so a frame carries half of the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from contracts.phase import Role
from engine.checkpoint.resolve import resolve_model
from experiments.engine_bench.server import free_port
from experiments.load.command_line import end
from experiments.load.machine import busy_seconds, cpu_seconds, describe_machine
from experiments.router_bench.added import added_by_router, read_tap
from experiments.router_bench.report import row
from experiments.router_bench.stack import Setup, running_replica, running_router, running_tap
from experiments.router_bench.streams import Load, Seen, direct_load, http_load
from experiments.router_bench.tap import Passed

NAME_LENGTH = len("bench-0000-0000")


def main() -> None:
    """Run both loads and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.router_bench", description=__doc__)
    parser.add_argument("--streams", type=int, default=50, help="requests at a time (default 50)")
    parser.add_argument("--rounds", type=int, default=4, help="requests of each stream, one after the other")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=50.0, help="how long each step of the fake engine takes")
    parser.add_argument("--replicas", type=int, default=1, help="more than one: alternating ones (default 1, mixed)")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is used")
    parser.add_argument("--logs", type=Path, help="where logs go (default: a temporary folder)")
    words = parser.parse_args()
    role = Role.MIXED if words.replicas == 1 else Role.ALTERNATING
    setup = Setup(words.streams, words.step_ms / 1000, words.model, role)
    period_s = words.max_tokens * setup.step_s
    load = Load(words.streams, words.rounds, words.max_tokens, stagger_s=period_s / words.streams)
    with tempfile.TemporaryDirectory() as folder:
        logs = words.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        print(describe_machine())
        print(
            f"{load.streams} streams, {load.rounds} requests each, {load.max_tokens} tokens, step {words.step_ms} ms\n"
        )
        if role is Role.MIXED:
            _print_direct(asyncio.run(_direct(setup, load, logs)))
        _through_router(setup, load, logs, words.replicas)


async def _direct(setup: Setup, load: Load, logs: Path) -> list[Seen]:
    with running_replica(setup, logs) as endpoint:
        return await direct_load(load, endpoint)


def _through_router(setup: Setup, load: Load, logs: Path, num_replicas: int) -> None:
    files = resolve_model(setup.model)
    notes = [logs / f"tap{i}.msgpack" for i in range(num_replicas)]
    with ExitStack() as replicas:
        endpoints = [replicas.enter_context(running_replica(setup, logs, f"bench{i}")) for i in range(num_replicas)]
        with ExitStack() as others:
            taps = [others.enter_context(running_tap(*pair)) for pair in zip(endpoints, notes, strict=True)]
            stack = others.enter_context(running_router(setup, taps, free_port(), logs))
            cpu_before, busy_before = cpu_seconds(stack.router_pid), busy_seconds()
            seen = asyncio.run(http_load(load, stack.url, files.name))
            cpu_s = cpu_seconds(stack.router_pid) - cpu_before
            busy_s = busy_seconds() - busy_before
        passed = [msgspec.msgpack.decode(note.read_bytes(), type=list[Passed]) for note in notes]
    tokenizer = Tokenizer.from_file(str(files.tokenizer_file))
    tokens = {name: sequence for one in passed for name, sequence in read_tap(one, NAME_LENGTH).items()}
    added = added_by_router(seen, tokens, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    print("through the router, HTTP streams:")
    _print_seen(seen)
    print("\nadded by the router (client and HTTP included):")
    row("TTFT", added.ttft_s, "goal: p50 under 2 ms")
    row("  request, client to wire", added.before_s)
    row("  first token, wire to client", added.first_s)
    row("each later token", added.later_s, "goal: p50 under 0.5 ms")
    row("  first one of its step", added.step_first_s, "without waiting for other streams")
    row("  last one of its step", added.step_last_s)
    count = sum(len(sequence.tokens) for sequence in tokens.values())
    elapsed_s = max(request.events[-1][0] for request in seen) - min(request.sent_s for request in seen)
    print(f"\nrouter CPU: {cpu_s / count * 1e6:.0f} us a token ({cpu_s:.2f} s, {count} tokens, {len(seen)} requests),")
    print(f"{cpu_s / elapsed_s:.0%} of one core at {count / elapsed_s:.0f} tokens/s; ", end="")
    print(f"all cores of the machine were busy for {busy_s:.1f} s in {elapsed_s:.1f} s")


def _print_direct(seen: list[Seen]) -> None:
    print("straight to the replica, ZMQ:")
    _print_seen(seen)
    print()


def _print_seen(seen: Sequence[Seen]) -> None:
    row("TTFT", [request.events[0][0] - request.sent_s for request in seen])
    gaps = [b[0] - a[0] for request in seen for a, b in zip(request.events, request.events[1:], strict=False)]
    row("gap between tokens", gaps)


if __name__ == "__main__":
    end("router_bench", main)

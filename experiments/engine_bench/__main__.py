"""`python -m experiments.engine_bench`: the tables of issue "First light", one server after the other."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from engine.checkpoint.resolve import resolve_model
from experiments.engine_bench import peers as peer_list
from experiments.engine_bench import roofline
from experiments.engine_bench.peers import Installed, Peer
from experiments.engine_bench.report import Report
from experiments.engine_bench.server import PeerFailedError, Running, free_port, served
from experiments.engine_bench.workloads import Figure, LoadFailedError, decode, poisson, prefill
from experiments.load.client import Target
from experiments.load.command_line import end
from experiments.load.machine import describe_machine, peak_memory_bytes
from experiments.load.prompts import PromptSource

PREFILLS = (512, 1200)
STREAMS = (1, 8, 16)


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.engine_bench", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="default %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="of each server (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of the rows without arrivals (default %(default)s)")
    parser.add_argument("--rows", default="prefill,decode,poisson", help="which rows (default %(default)s)")
    parser.add_argument(
        "--rates",
        default="0.5,1,1.5,2,2.5,3",
        help="offered requests per second of the Poisson rows (default %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the arrivals of each Poisson row")
    parser.add_argument("--slo", default="4,0.25", help="TTFT and TPOT targets in seconds")
    parser.add_argument("--seed", type=int, default=7, help="of arrivals and lengths (default %(default)s)")
    parser.add_argument("--only", default="", help="comma-separated parts of server names")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/engine_bench"),
        help="where results and logs go (default %(default)s)",
    )
    parser.add_argument("--vllm", type=Path, help="the vllm executable of its own environment")
    parser.add_argument("--vllm-preload", help="LD_PRELOAD that vLLM recommends (tcmalloc, libiomp5)")
    parser.add_argument("--llama-server", type=Path, help="a natively built llama-server")
    parser.add_argument("--gguf-f32", type=Path, help="the model for llama-server, fp32")
    parser.add_argument("--gguf-q8", type=Path, help="the model for llama-server, Q8_0")
    parser.add_argument("--transformers", type=Path, help="the transformers executable of its own environment")
    return parser.parse_args(argv)


def candidates(options: argparse.Namespace, installed: Installed) -> list[Callable[[int], Peer]]:
    """Every server that is installed, as a function of its port."""
    threads: int = options.threads
    found: list[Callable[[int], Peer]] = [
        partial(peer_list.phaseserve, installed, threads=threads, quantization=quantization, replicas=n, role=role)
        for quantization in ("none", "int8")
        for n, role in ((1, "alternating"), (2, "alternating"), (1, "mixed"))
    ]
    if installed.llama_server and installed.gguf_f32:
        found.append(partial(peer_list.llama_cpp, installed, threads=threads, kind="F32"))
    if installed.llama_server and installed.gguf_q8:
        found.append(partial(peer_list.llama_cpp, installed, threads=threads, kind="Q8_0"))
    if installed.vllm:
        found.append(partial(peer_list.vllm, installed, threads=threads))
    if installed.transformers:
        found.append(partial(peer_list.transformers, installed, threads=threads))
    wanted = [part.lower() for part in options.only.split(",") if part]
    return [make for make in found if not wanted or any(part in make(0).name.lower() for part in wanted)]


def rows(
    options: argparse.Namespace, target: Target, pid: int, prompts: PromptSource
) -> list[tuple[str, Callable[[], Awaitable[Figure]]]]:
    """What is measured of each server, in order, by the name of its row."""
    chosen = options.rows.split(",")
    ttft_s, tpot_s = (float(x) for x in options.slo.split(","))
    plan: list[tuple[str, Callable[[], Awaitable[Figure]]]] = []
    if "prefill" in chosen:
        for n in PREFILLS:
            plan.append((f"prefill {n}, tokens/s", partial(prefill, target, pid, prompts, n, options.repeats)))
    if "decode" in chosen:
        for n in STREAMS:
            plan.append((f"decode {n} streams, tokens/s", partial(decode, target, pid, prompts, n, options.repeats)))
    if "poisson" in chosen:
        for rate in (float(x) for x in options.rates.split(",")):
            load = partial(poisson, target, pid, prompts, rate, options.seconds, options.seed, (ttft_s, tpot_s))
            plan.append((f"in SLO at {rate:g} req/s", load))
    return plan


async def measure_server(report: Report, running: Running, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    """All rows of one server. A failing row becomes a note."""
    peer = running.peer
    target = Target(running.url, peer.model, peer.extra, peer.drop)
    prompts = PromptSource(tokenizer, options.seed)
    await prefill(target, running.pid, prompts, 64, 1)  # warm
    for row, measure in rows(options, target, running.pid, prompts):
        try:
            figure = await measure()
        except LoadFailedError as error:
            report.notes.append(f"{peer.name}, {row}: {error}")
            continue
        report.add(row, peer.name, figure)
        print(f"{peer.name:32s} {row:28s} {figure.value:9.2f} {figure.detail}", flush=True)
    memory = peak_memory_bytes(running.pid)
    report.notes.append(f"{peer.name}: ready after {running.start_s:.1f} s, peak memory {memory / 1e9:.2f} GB")


def main(argv: list[str]) -> int:
    """Measure every named server and print the table."""
    options = parse(argv)
    files = resolve_model(options.model)
    tokenizer = Tokenizer.from_file(str(files.tokenizer_file))
    installed = Installed(
        files.directory, options.vllm, options.vllm_preload, options.llama_server, options.gguf_f32, options.gguf_q8,
        options.transformers,
    )  # fmt: skip
    limits = roofline.measure(options.threads)
    report = Report([
        f"`python -m experiments.engine_bench {shlex.join(argv)}`", "",
        f"{describe_machine()}; {options.threads} threads; fp32 GEMM {limits.gemm_flops / 1e9:.0f} GFLOP/s, "
        f"weights read at {limits.read_bytes / 1e9:.1f} GB/s. Limits and shares are for fp32.",
    ])  # fmt: skip
    for n in PREFILLS:
        report.limits[f"prefill {n}, tokens/s"] = roofline.prefill_limit(files.spec, limits, n)
    for b in STREAMS:
        report.limits[f"decode {b} streams, tokens/s"] = roofline.decode_limit(files.spec, limits, b, 576, 4.0)
    options.out.mkdir(parents=True, exist_ok=True)
    for make in candidates(options, installed):
        peer = make(free_port())
        log = options.out / (peer.name.replace(" ", "_") + ".log")
        try:
            with served(peer, int(peer.argv[peer.argv.index("--port") + 1]), log) as running:
                asyncio.run(measure_server(report, running, tokenizer, options))
        except PeerFailedError as error:
            report.notes.append(f"{peer.name}: not measured, {error}")
        report.save(options.out)
    print(report.markdown())
    return 0


if __name__ == "__main__":
    end("engine_bench", lambda: main(sys.argv[1:]))

"""`python -m experiments.kernel_bench`: milliseconds a step of both CPU executors, beside the limits of the machine.

Best of many repeats: on a shared machine that is the only figure that repeats itself. Limits are measured in the same
run; prefill's is fp32 GEMM, so int8 prefill may exceed it. A step is embedding, all layers, and one row of logits for
each sequence.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.attention import SdpaAttention
from engine.checkpoint.resolve import resolve_model
from engine.executor import LayerExecutor, StepInputs
from engine.kv_cache import KVCache
from engine.linear import choose_linear
from engine.native_compile import native_available
from engine.native_executor import NativeCpuExecutor
from engine.rope import build_rope_table
from engine.torch_executor import TorchExecutor
from engine.weights import load_weights
from experiments.engine_bench import roofline
from experiments.kernel_bench.cases import CASES, Case, blocks_needed, step_inputs
from experiments.load.command_line import end

CPU = torch.device("cpu")
BLOCK_SIZE = 16
WEIGHT_BYTES = {"none": 4, "int8": 1}


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.kernel_bench", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each figure, at least two repeats")
    parser.add_argument("--executors", default="native,torch")
    parser.add_argument("--quantizations", default="none,int8")
    return parser.parse_args(argv)


def make_executor(kind: str, quantization: str, spec: ModelSpec, weight_files: list[Path]) -> LayerExecutor:
    """One executor with a KV cache of its own. The torch one is built as `engine.build` builds it."""
    layout = KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=BLOCK_SIZE,
        dtype="float32",
    )
    cache = KVCache(layout, blocks_needed(BLOCK_SIZE), CPU)
    weights = load_weights(spec, weight_files, CPU, torch.float32)
    rope = build_rope_table(spec, max(case.context for case in CASES), CPU)
    if kind == "native":
        return NativeCpuExecutor(weights, spec, rope, cache, quantization)
    linear = choose_linear(CPU, torch.float32, quantization)
    return TorchExecutor(weights, spec, rope, cache, linear, SdpaAttention(BLOCK_SIZE))


def best_step_s(executor: LayerExecutor, case: Case, inputs: StepInputs, num_layers: int, seconds: float) -> float:
    """The quickest of the steps that fit into `seconds`."""
    last_rows = inputs.query_start[1:].long() - 1
    best, began, repeats = float("inf"), time.perf_counter(), 0
    while repeats < 2 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        hidden = executor.run_layers(executor.embed(inputs), inputs, 0, num_layers)
        executor.logits(hidden[last_rows])
        best = min(best, time.perf_counter() - start)
        repeats += 1
    return best


def rows(options: argparse.Namespace) -> Iterator[str]:
    """One line per figure, as they are measured."""
    files = resolve_model(options.model)
    spec = files.spec
    for quantization in options.quantizations.split(","):
        for kind in options.executors.split(","):
            limits = roofline.measure(options.threads)
            yield (
                f"\n{kind} {quantization}: limits now {limits.gemm_flops / 1e9:.0f} GFLOP/s, "
                f"{limits.read_bytes / 1e9:.1f} GB/s; load average {Path('/proc/loadavg').read_text()[:4]}"
            )
            executor = make_executor(kind, quantization, spec, list(files.weight_files))
            for case in CASES:
                inputs = step_inputs(case, spec, BLOCK_SIZE)
                step_s = best_step_s(executor, case, inputs, spec.num_layers, options.seconds)
                share = case.limit_s(spec, limits, WEIGHT_BYTES[quantization]) / step_s
                rate = case.num_sequences * case.count / step_s
                yield f"{case.name:<18} {step_s * 1e3:8.2f} ms {rate:8.0f} tok/s {share:6.0%} of the limit"


def main(argv: list[str]) -> None:
    """Print the table."""
    options = parse(argv)
    reason = native_available()
    if reason is not None:
        sys.exit(f"the CPU kernels cannot be used here: {reason}")
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        for line in rows(options):
            print(line, flush=True)


if __name__ == "__main__":
    end("kernel_bench", lambda: main(sys.argv[1:]))

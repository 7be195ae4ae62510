"""What is measured of each server: prefill rate, decode rate at a batch size, and goodput under a Poisson mix."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from experiments.load.client import Job, Sample, Target, run_load
from experiments.load.machine import busy_seconds, cpu_seconds
from experiments.load.prompts import PromptSource

CONTEXT_TOKENS = 512
DECODE_TOKENS = 128


class LoadFailedError(Exception):
    """Requests failed. The message carries the first error."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured row of one server. `cpu_s` of the server, `busy_cores` of the machine over `wall_s`."""

    value: float
    wall_s: float
    cpu_s: float
    busy_cores: float
    detail: dict[str, float]


async def _measured(target: Target, pid: int, jobs: list[Job]) -> tuple[list[Sample], float, float, float]:
    cpu, busy = cpu_seconds(pid), busy_seconds()
    samples, wall = await run_load(target, jobs)
    return samples, wall, cpu_seconds(pid) - cpu, (busy_seconds() - busy) / wall


def _require_all(samples: list[Sample]) -> None:
    errors = [sample.error for sample in samples if sample.error]
    if errors:
        raise LoadFailedError(f"{len(errors)} of {len(samples)} requests failed: {errors[0]}")


async def prefill(target: Target, pid: int, prompts: PromptSource, num_tokens: int, repeats: int) -> Figure:
    """Prompt tokens per second of one stream: prompt length over TTFT, best of `repeats` (the machine is shared)."""
    best: Figure | None = None
    for _ in range(repeats):
        samples, wall, cpu, busy = await _measured(target, pid, [Job(0.0, prompts.text(num_tokens), 1)])
        _require_all(samples)
        rate = num_tokens / samples[0].ttft_s
        if best is None or rate > best.value:
            best = Figure(rate, wall, cpu, busy, {"ttft_ms": samples[0].ttft_s * 1e3})
    assert best is not None
    return best


async def decode(target: Target, pid: int, prompts: PromptSource, streams: int, repeats: int) -> Figure:
    """Output tokens per second over all streams while every one of them decodes, best of `repeats`."""
    best: Figure | None = None
    for _ in range(repeats):
        jobs = [Job(0.0, prompts.text(CONTEXT_TOKENS), DECODE_TOKENS) for _ in range(streams)]
        samples, wall, cpu, busy = await _measured(target, pid, jobs)
        _require_all(samples)
        rate, gap_ms = overlap_rate(samples)
        if best is None or rate > best.value:
            best = Figure(rate, wall, cpu, busy, {"step_ms": gap_ms})
    assert best is not None
    return best


def overlap_rate(samples: list[Sample]) -> tuple[float, float]:
    """(tokens per second, milliseconds per step) between the last first token and the first last token.

    Chunks may carry several tokens; each stream's chunks are scaled to its counted tokens.
    """
    start = max(sample.sent_at_s + sample.token_times_s[0] for sample in samples)
    end = min(sample.sent_at_s + sample.token_times_s[-1] for sample in samples)
    if end <= start:
        raise LoadFailedError("the streams never decoded together: ask for more output tokens")
    tokens = 0.0
    for sample in samples:
        inside = sum(start < sample.sent_at_s + t <= end for t in sample.token_times_s)
        tokens += inside * sample.output_tokens / len(sample.token_times_s)
    rate = tokens / (end - start)
    return rate, len(samples) / rate * 1e3


def poisson_jobs(prompts: PromptSource, rate: float, seconds: float, seed: int) -> list[Job]:
    """Poisson arrivals; prompts lognormal (median 300, sigma 0.6, at most 1,500), outputs (median 60, 0.5, 200)."""
    draw, at_s = random.Random(seed), 0.0
    jobs: list[Job] = []
    while True:
        at_s += draw.expovariate(rate)
        if at_s > seconds:
            return jobs
        prompt_tokens = int(min(1500, max(16, draw.lognormvariate(5.7038, 0.6))))
        output_tokens = int(min(200, max(8, draw.lognormvariate(4.0943, 0.5))))
        jobs.append(Job(at_s, prompts.text(prompt_tokens), output_tokens))


async def poisson(
    target: Target, pid: int, prompts: PromptSource, rate: float, seconds: float, seed: int, slo: tuple[float, float]
) -> Figure:
    """Share of requests within both targets (TTFT and mean TPOT, seconds) at an offered rate."""
    jobs = poisson_jobs(prompts, rate, seconds, seed)
    samples, wall, cpu, busy = await _measured(target, pid, jobs)
    good = [s for s in samples if not s.error and s.ttft_s <= slo[0] and s.tpot_s <= slo[1]]
    done = [s for s in samples if not s.error]
    detail = {"requests": float(len(samples)), "errors": float(len(samples) - len(done)), "rate": rate}
    if len(done) > 1:
        ttft, tpot = sorted(s.ttft_s for s in done), sorted(s.tpot_s for s in done)
        detail |= {
            "ttft_p50_s": statistics.median(ttft),
            "ttft_p90_s": ttft[int(0.9 * (len(ttft) - 1))],
            "tpot_p50_ms": statistics.median(tpot) * 1e3,
            "tpot_p90_ms": tpot[int(0.9 * (len(tpot) - 1))] * 1e3,
            "max_gap_s": max(s.max_gap_s for s in done),
            "output_tokens_per_s": sum(s.output_tokens for s in done) / wall,
        }
    return Figure(len(good) / len(samples), wall, cpu, busy, detail)

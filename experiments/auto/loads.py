"""What is asked of the fleet: four recorded traces, and three loads that change while they run."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from pathlib import Path

import msgspec

from contracts.request import Slo
from experiments.crossover.loads import demand_of
from experiments.crossover.sites import place
from scheduling.fleet_workload import Demand
from simulator.changes import Change, SetLink
from simulator.deployment import Deployment
from simulator.links import BYTES_PER_GBIT
from simulator.traces import Trace, TraceRow

LINKS_GBIT = (10.0, 100.0, 1.0)
"""Of each host, under the recorded traces."""
CHANGING_GBIT = 25.0
"""Of each host at the start, under the loads that change."""
HORIZON_S = 420.0
"""How long a recorded trace is played at each rate."""
JUDGED = 2000
"""Requests of a trace from which its mean lengths are taken."""
MOST_PROMPT = 28_000
"""Longer prompts of a trace are cut: the model's context is 32,768 tokens."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a trace, served by one model on one hardware within `slo`; what happens to the links meanwhile.
    `turns` say in words what changes at which second of the run, links or lengths."""

    name: str
    trace: Trace
    model: str
    hardware: str
    slo: Slo
    changes: tuple[Change, ...] = ()
    prefix_cache: bool = False
    turns: tuple[tuple[float, str], ...] = ()

    @property
    def setting(self) -> str:
        """Model, hardware and targets in words."""
        cards = f"{self.deployment.tp} {self.hardware.upper()}"
        targets = f"TTFT {self.slo.ttft_s:g} s, TPOT {self.slo.tpot_s * 1e3:g} ms"
        return f"{self.model} on {cards} a replica, {targets}"

    @property
    def deployment(self) -> Deployment:
        """One replica."""
        there = place(self.model, self.hardware).deployment
        assert there is not None
        return there

    def played_at(self, rate: float) -> Load:
        """As much of the trace as arrives within the horizon at so many requests a second."""
        trace = msgspec.structs.replace(self.trace, most=math.ceil(rate * HORIZON_S))
        return msgspec.structs.replace(self, trace=trace)

    @property
    def demand(self) -> Demand:
        """As the planner's closed forms want it; what is cached of prompts left out of account."""
        rows = list(self.trace.rows())
        prompts = [float(min(row.prompt_tokens, MOST_PROMPT)) for row in rows]
        outputs = statistics.fmean(row.output_tokens for row in rows)
        return demand_of(statistics.fmean(prompts), statistics.pstdev(prompts), outputs, self.slo)


TIGHT, USUAL, LONG = Slo(ttft_s=2.0, tpot_s=0.05), Slo(ttft_s=5.0, tpot_s=0.1), Slo(ttft_s=15.0, tpot_s=0.1)
TRACES = (
    ("azure_llm_2023_conv.csv", "codellama2-34b", "l20", TIGHT),
    ("azure_llm_2023_code.csv", "codellama2-34b", "l20", USUAL),
    ("mooncake_conversation.jsonl", "qwen2-72b", "a800", LONG),
    ("mooncake_synthetic.jsonl", "qwen2-72b", "h100", LONG),
)
"""File, model, hardware, targets: EcoServe's (OSDI'26) for chat and for long prompts, one of them tightened."""


def recorded(traces: Path) -> list[Load]:
    """One load of each file in that folder."""
    return [
        Load(
            name=Path(file).stem,
            trace=Trace(path=str(traces / file), skip=1000, most=JUDGED),
            model=model,
            hardware=hardware,
            slo=slo,
            prefix_cache=file.endswith(".jsonl"),
        )
        for file, model, hardware, slo in TRACES
    ]


class Stretch(msgspec.Struct, frozen=True):
    """So many seconds of Poisson arrivals with lognormal lengths of these means (tokens)."""

    seconds: float
    rate: float
    prompt: float
    output: float


PROMPTS, OUTPUTS = Stretch(120.0, 3.0, 2000.0, 40.0), Stretch(120.0, 7.0, 150.0, 500.0)
FLIP = (PROMPTS, OUTPUTS, PROMPTS, OUTPUTS)
STEADY = (Stretch(480.0, 3.2, 1200.0, 280.0),)
FALLS_AT_S, BACK_AT_S = 160.0, 320.0
LOW_GBIT = 0.3


def changing(folder: Path, seed: int) -> list[Load]:
    """Loads for which no one static layout is right all the time. Arrivals are written into `folder` as traces."""
    flip = Trace(path=str(_written(folder / f"flip-{seed}.csv", FLIP, seed)))
    steady = Trace(path=str(_written(folder / f"steady-{seed}.csv", STEADY, seed)))
    falls = (SetLink(at_s=FALLS_AT_S, bytes_per_s=LOW_GBIT * BYTES_PER_GBIT),)
    comes_back = (*falls, SetLink(at_s=BACK_AT_S, bytes_per_s=CHANGING_GBIT * BYTES_PER_GBIT))
    low = ((FALLS_AT_S, f"links of {LOW_GBIT:g} Gbit/s"),)
    back = (*low, (BACK_AT_S, f"links of {CHANGING_GBIT:g} Gbit/s"))
    chat = Load(name="", trace=steady, model="codellama2-34b", hardware="l20", slo=TIGHT)
    return [
        msgspec.structs.replace(chat, name="prompts and outputs flip three times", trace=flip, turns=_flips()),
        msgspec.structs.replace(chat, name=f"links fall to {LOW_GBIT:g} Gbit/s", changes=falls, turns=low),
        msgspec.structs.replace(chat, name="links fall and come back", changes=comes_back, turns=back),
    ]


def _flips() -> tuple[tuple[float, str], ...]:
    """Where the stretches of `FLIP` after the first begin."""
    starts = itertools.accumulate(stretch.seconds for stretch in FLIP)
    return tuple(
        (at_s, "long prompts" if stretch is PROMPTS else "long outputs")
        for at_s, stretch in zip(starts, FLIP[1:], strict=False)
    )


def _written(path: Path, stretches: tuple[Stretch, ...], seed: int) -> Path:
    """The same seed, the same file: its content is part of the key under which runs are kept."""
    drawn = random.Random(seed)
    rows: list[TraceRow] = []
    begin = 0.0
    for stretch in stretches:
        at = begin
        while (at := at + drawn.expovariate(stretch.rate)) < begin + stretch.seconds:
            rows.append(TraceRow(at, _length(drawn, stretch.prompt), _length(drawn, stretch.output)))
        begin += stretch.seconds
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for row in rows:
        minutes, seconds = divmod(row.at_s, 60.0)
        lines.append(f"2026-01-01 00:{int(minutes):02d}:{seconds:09.6f},{row.prompt_tokens},{row.output_tokens}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _length(drawn: random.Random, mean: float) -> int:
    """Lognormal with a median of 0.8 of the mean."""
    sigma = (2.0 * math.log(1.25)) ** 0.5  # ln(mean / median)
    return max(1, min(8192, round(drawn.lognormvariate(0.0, sigma) * 0.8 * mean)))

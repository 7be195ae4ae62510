"""Which goals are met, by the measured rows and nothing else, and what was not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from textwrap import wrap

from experiments.scale.parts import FLEET, MILLION, NATIVE, OURS, VIDUR
from experiments.scale.store import Kept
from experiments.scale.tables import cases_of, middle, runs_of, trace_of

GOAL_TIMES, GOAL_S = 20.0, 300.0
CORES = 2
WIDTH = 118
ALIKE = 0.02
"""Figures of two simulators that are nearer than this part of each other say the same."""
FLAT = 1.5
"""Memory after ten times the requests, in multiples, up to which it does not follow the requests served."""
WHY_SLOWER = """\
  Vidur is a loop over batches with a queue for a scheduler. Ours runs the cores that serve live, with views, leases, a
  predictor that learns from each step, the KV ledger. Steps in which nothing is decided are run in one go, but each
  arrival, prompt chunk and end of a stream is a decision of the core, at a cost that grows with the batch."""
FIDELITY = """\
  What differs by construction: ours computes the formula for each step. Vidur looks it up, with contexts rounded up to
  its granularity (64 tokens here, 256 unless set) and prompt chunks to 32; its tables hold the formula's value in the
  middle of what is rounded to an entry. With the value at the entry its steps are longer on the whole. With several
  replicas Vidur gives them requests in turn, ours where TTFT is predicted to be best: the tail of TTFT then says how
  good a placement is, and not how true a simulator is. (Vidur's `lor` counts waiting requests only, and sends to the
  first replica as long as none waits anywhere.)"""


def verdicts(by_part: Mapping[str, Sequence[Kept]]) -> Iterator[str]:
    """The goals of the issue, one by one."""
    parts = (
        _beside_vidur(by_part.get("vidur", ())),
        _many_requests(by_part.get("requests", ())),
        _many_replicas(by_part.get("replicas", ())),
        _memory(by_part.get("memory", ())),
    )
    for sentence in chain(*parts):
        within = "" if sentence.startswith("-") else "  "
        text = " ".join(sentence.split())
        yield from wrap(text, WIDTH, initial_indent=within, subsequent_indent="  ", break_on_hyphens=False)


def _beside_vidur(rows: Sequence[Kept]) -> Iterator[str]:
    """The faster of Vidur's two by CPU time, and how far apart what both report is."""
    slower = False
    for replicas, requests in cases_of(rows):
        ours, *theirs = (runs_of(rows, replicas, requests, who) for who in (OURS, VIDUR, NATIVE))
        if not ours or not all(theirs):
            yield f"- Beside Vidur, {_replicas(replicas)}: not all of the three were run."
            continue
        times = min(middle(runs, "cpu_s") for runs in theirs) / middle(ours, "cpu_s")
        slower |= times < GOAL_TIMES
        yield (
            f"- {GOAL_TIMES:g} times as fast as Vidur, {_replicas(replicas)}: {_met(times >= GOAL_TIMES)}. "
            f"{times:.1f} times the faster of Vidur's two by CPU time, medians of {len(ours)}."
        )
        apart = {
            name: middle(ours, name) / middle(theirs[0], name) - 1.0
            for name in ("e2e_mean_s", "e2e_p90_s", "ttft_p50_s", "ttft_p90_s")
        }
        beyond = [_figure(name) for name, one in apart.items() if abs(one) > ALIKE]
        told = ", ".join(f"{_figure(name)} {100 * one:+.1f} %" for name, one in apart.items())
        yield f"  Ours reports against Vidur's: {told}. Further apart than {100 * ALIKE:g} %: {_listed(beyond)}."
    if slower:
        yield WHY_SLOWER
    if rows:
        yield FIDELITY


def _many_requests(rows: Sequence[Kept]) -> Iterator[str]:
    goal = f"- A million requests on 64 replicas in {GOAL_S:g} s on two cores"
    most_us = GOAL_S * CORES / MILLION * 1e6
    for row in rows:
        one, trace = row.measured, trace_of(row)
        per_us = one.cpu_s / one.requests * 1e6
        load = "" if row.load is None else f" at a load of {row.load:.1f}"
        told = f"{one.requests:,} requests took {one.wall_s:.0f} s{load}, {per_us:.0f} us of CPU"
        if one.requests >= MILLION:
            yield f"{goal}, `{trace}`: {_met(one.wall_s < GOAL_S)}. {told} each."
        else:
            yield (
                f"{goal}, `{trace}`: not shown. {told} each; a million at that cost would take "
                f"{per_us * MILLION / 1e6 / CORES:.0f} s of both cores (the goal allows {most_us:.0f} us each)."
            )


def _many_replicas(rows: Sequence[Kept]) -> Iterator[str]:
    largest = [row for row in rows if row.job.case.replicas >= FLEET]
    for row in largest:
        one = row.measured
        whole = "run" if one.requests >= MILLION else f"not run, {one.requests:,} requests were"
        yield (
            f"- A million requests on {row.job.case.replicas:,} replicas: {whole}. {one.wall_s:.0f} s, "
            f"{one.cpu_s:.0f} s of CPU, {one.peak_mb:.0f} MB; a decision takes {one.decision_us.p50:.0f} us (P50)."
        )
    if rows and not largest:
        yield f"- A million requests on {FLEET:,} replicas: not run."


def _memory(rows: Sequence[Kept]) -> Iterator[str]:
    if len(rows) < 2:
        return
    few, many = rows[0], rows[-1]
    times = many.measured.peak_mb / few.measured.peak_mb
    yield (
        f"- Memory grows with requests in flight, not with requests served: {_met(times <= FLAT)} (at most "
        f"{FLAT:g} times). {few.measured.peak_mb:.0f} MB after {few.job.case.num_requests:,} requests,"
    )
    yield (f"  {many.measured.peak_mb:.0f} after {many.job.case.num_requests:,}: {times:.2f} times.")
    yield "  Quantiles keep up to 10,000 values of each kind; `tests/simulator/test_sim_memory.py` compares objects."


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _figure(name: str) -> str:
    what, which, _ = name.split("_")
    return f"{what.upper()} {which.upper() if which[0] == 'p' else which}"

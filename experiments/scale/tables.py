"""The parts as tables: what was measured, line by line. Nothing here that a run does not give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from experiments.scale.cases import HARDWARE, MODEL
from experiments.scale.parts import FLEET, MILLION, NATIVE, OURS, VIDUR
from experiments.scale.store import Kept

Rows = Sequence[Kept]
NOTES = f"""\
Model and hardware: {MODEL} on {HARDWARE}, step times by the formula of `scheduling.step_cost` fitted to its
roofline. Each run has a process of its own. `cpu` is the processor time of the run, which other work on the machine
lengthens less than `wall`; `load` is the machine's load average when the run began. `used` is the share of their time
in which replicas computed, `attained` the share of requests within both targets. A table holds runs that were kept
under one version of the code, that of the checkout when the command began. The commit in its last column is the
checkout's at the end of the run: where it is not that of the command's first run, the checkout moved on meanwhile, and
the run, which loads the code anew, may be of a newer version."""

_COLUMNS = "requests | wall s | cpu s | cpu us/request | events/s (cpu) | tokens out | used | attained | peak MB | load"


def beside_vidur(rows: Rows) -> Iterator[str]:
    """Medians of the repetitions."""
    yield from (
        "Vidur 0.0.26 from PyPI (the MLSys'24 simulator), Sarathi scheduler, chunks of 512, at most 128 streams, no",
        "charts, no spread, requests to replicas in turn; the conversation trace (Azure) at its own rate for each.",
        "Both get the same requests and the same cost of a step. Vidur's profiles are not in the wheel: its tables are",
        "filled with our formula, outside of what is measured. Medians of runs that took turns. `steps` are batches.",
        "",
        "| replicas | requests | simulator | runs | cpu us/request | wall us/request | events/s (cpu) | steps |"
        " cpu us/step | TTFT p50 s | TTFT p90 s | E2E mean s | E2E p90 s | peak MB | load | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for replicas, requests in cases_of(rows):
        for who in (VIDUR, NATIVE, OURS):
            runs = runs_of(rows, replicas, requests, who)
            if runs:
                yield _beside_line(replicas, requests, who, runs)


def cases_of(rows: Rows) -> list[tuple[int, int]]:
    """Replicas and requests of what was measured, in order."""
    return list(dict.fromkeys((row.job.case.replicas, row.job.case.num_requests) for row in rows))


def runs_of(rows: Rows, replicas: int, requests: int, who: str) -> list[Kept]:
    """The repetitions of one case."""
    return [
        row
        for row in rows
        if (row.job.case.replicas, row.job.case.num_requests, row.job.who) == (replicas, requests, who)
    ]


def middle(runs: Rows, name: str) -> float:
    """The median of a figure."""
    return median(float(getattr(row.measured, name)) for row in runs)


def _beside_line(replicas: int, requests: int, who: str, runs: Rows) -> str:
    one, cpu_s = runs[0].measured, middle(runs, "cpu_s")
    cells = [
        *(str(replicas), f"{requests:,}", who, str(len(runs)), f"{cpu_s / requests * 1e6:.0f}"),
        *(f"{middle(runs, 'wall_s') / requests * 1e6:.0f}", f"{one.events / cpu_s:.0f}", f"{one.steps:,}"),
        *(f"{cpu_s / one.steps * 1e6:.0f}", f"{one.ttft_p50_s:.3f}", f"{one.ttft_p90_s:.3f}"),
        *(f"{one.e2e_mean_s:.2f}", f"{one.e2e_p90_s:.2f}", f"{one.peak_mb:.0f}"),
        *(_load(runs), runs[0].commit),
    ]
    return f"| {' | '.join(cells)} |"


def many_requests(rows: Rows) -> Iterator[str]:
    """One line for each trace."""
    yield from (
        "Two routers with 32 replicas each (`simulate_sharded`: every request goes to one of them by a hash of its",
        "number, as a load balancer would do), a process for each, `cpu` and `peak MB` of both together; our defaults,",
        "step times with a spread of 3 %. `code`: 2048 prompt and 28 output tokens on average at 4 requests a second",
        "and replica; `conv`: 1155 and 211 at 3.3.",
        "",
        f"| trace | {_COLUMNS} | commit |",
        f"|---|{'---|' * 11}",
    )
    for row in rows:
        yield _line(trace_of(row), row, row.commit)


def trace_of(row: Kept) -> str:
    """Its short name."""
    return row.job.case.trace.split("_")[-1].removesuffix(".csv")


def many_replicas(rows: Rows) -> Iterator[str]:
    """One line for each fleet."""
    yield from (
        "One router, one process; prompts of 1155 and answers of 28 tokens on average, 4 requests a second and each;",
        "replicas without a data plane, each with a view at least every 0.5 s. `decision` and `view` are",
        "`ClusterCore.handle` of an arrival and of a replica's view (one in eight), in microseconds of this thread's",
        "CPU. The time of a run includes that its replicas join and that each one's blocks are checked at the end.",
        "",
        f"| replicas | {_COLUMNS} | decision p50 us | p99 us | view p50 us | p99 us | commit |",
        f"|---|{'---|' * 15}",
    )
    for row in rows:
        decision, view = row.measured.decision_us, row.measured.view_us
        told = [f"{one:.0f}" for one in (decision.p50, decision.p99, view.p50, view.p99)]
        yield _line(f"{row.job.case.replicas:,}", row, *told, row.commit)


def memory(rows: Rows) -> Iterator[str]:
    """One line for each number of requests."""
    yield from ("8 replicas, the code trace again and again.", "", "| requests | peak MB | commit |", "|---|---|---|")
    for row in rows:
        yield f"| {row.job.case.num_requests:,} | {row.measured.peak_mb:.0f} | {row.commit} |"


def _load(runs: Rows) -> str:
    """The median; older measurements have none."""
    known = [row.load for row in runs if row.load is not None]
    return f"{median(known):.1f}" if known else "-"


def _line(first: str, row: Kept, *last: str) -> str:
    one = row.measured
    cells = [
        *(first, f"{one.requests:,}", f"{one.wall_s:.0f}", f"{one.cpu_s:.0f}"),
        *(f"{one.cpu_s / one.requests * 1e6:.0f}", f"{one.events / one.cpu_s:.0f}"),
        *(f"{one.output_tokens:,}", f"{one.utilisation:.2f}", f"{one.attained:.3f}"),
        *(f"{one.peak_mb:.0f}", _load([row]), *last),
    ]
    return f"| {' | '.join(cells)} |"


def _many_requests_title(rows: Rows) -> str:
    """What was run, beside what was meant to be."""
    sizes = sorted({row.job.case.num_requests for row in rows})
    fleets = " and ".join(f"{count:,}" for count in sorted({row.job.case.replicas for row in rows}))
    goal = "" if sizes[0] >= MILLION else " (the goal: a million)"
    return f"{' and '.join(f'{size:,}' for size in sizes)} requests on {fleets} replicas{goal}"


def _many_replicas_title(rows: Rows) -> str:
    """Of the largest fleet that was run."""
    most = max(row.job.case.replicas for row in rows)
    goal = "" if most >= FLEET else f" (the goal: {FLEET:,})"
    return f"Up to {most:,} replicas{goal}"


TABLES: dict[str, tuple[Callable[[Rows], str], Callable[[Rows], Iterator[str]]]] = {
    "vidur": (lambda rows: "Beside Vidur", beside_vidur),
    "requests": (_many_requests_title, many_requests),
    "replicas": (_many_replicas_title, many_replicas),
    "memory": (lambda rows: "Memory by requests served", memory),
}
"""Title and lines by part, both of rows that are there."""

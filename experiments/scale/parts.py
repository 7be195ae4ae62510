"""The parts of the experiment, each a table. A part says whether it could be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from experiments.ecoserve.document import Document
from experiments.scale.cases import CODE, CONVERSATION, HARDWARE, MODEL
from experiments.scale.measuring import Store, name_of, ours, vidur
from experiments.scale.one import Case

GOAL_TIMES, GOAL_S = 20.0, 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for at the command line."""

    traces: Path
    vidur: str
    requests: int
    repeats: int
    quick: bool
    store: Store


def notes() -> list[str]:
    """What holds for all parts."""
    return [
        f"Model and hardware: {MODEL} on {HARDWARE}, step times by design §5's formula fitted to its roofline. Each",
        "run has a process of its own. `cpu` is the processor time of the run, which other work on the machine",
        "lengthens less than `wall`; `load` is the machine's load average when the run began (2 cores).",
    ]


def beside_vidur(document: Document, asked: Asked) -> bool:
    """Ours and Vidur take turns."""
    title = "Beside Vidur"
    if not asked.vidur:
        document.section(title, "Not measured: `--vidur` names no Python that has Vidur.")
        return False
    document.section(
        title,
        "Vidur 0.0.26 from PyPI (the MLSys'24 simulator), Sarathi scheduler, chunks of 512, at most 128 streams, no",
        "charts, no spread; the Azure conversation trace at its own rate for each replica. Both get the same requests",
        "and the same time for a step. Its profiles are not in the wheel, so its tables were filled with our formula,",
        "outside of what is measured. Medians of runs that took turns. `steps` are batches.",
        "",
        "| replicas | requests | simulator | cpu us/request | wall us/request | events/s (cpu) | steps | cpu us/step |"
        " TTFT p50 | p90 | E2E mean | p90 | peak MB | load |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for replicas, requests in ((1, 200), (4, 400)) if asked.quick else ((1, 1000), (16, 3000)):
        case = Case(kind="vidur", traces=str(asked.traces), replicas=replicas, num_requests=requests)
        runs: dict[str, list[dict[str, Any]]] = {"Vidur": [], "Vidur, its C++ predictor": [], "ours": []}
        for number in range(asked.repeats):
            name = name_of(case, number)
            for native in (False, True):
                which = "Vidur, its C++ predictor" if native else "Vidur"
                found = asked.store.found(f"{which} {name}", partial(vidur, asked.vidur, case, native=native))
                runs[which].append(found)
            runs["ours"].append(asked.store.found(f"ours {name}", partial(ours, case)))
        for which, found_all in runs.items():
            document.section(title, _beside_line(replicas, requests, which, found_all))
        least = min(_middle(runs[which], "cpu_s") for which in ("Vidur", "Vidur, its C++ predictor"))
        times = least / _middle(runs["ours"], "cpu_s")
        judged = "met" if times >= GOAL_TIMES else "not met"
        document.section(
            title + ": how many times faster",
            f"- {replicas} replicas: {times:.1f} times the faster of Vidur's two (goal {GOAL_TIMES:g}: {judged}).",
        )
    document.section(
        title + ": how many times faster",
        "",
        "Where it is not twenty times: Vidur is a loop over batches with a queue for a scheduler. Ours runs the cores",
        "that serve live, with views, leases, a predictor that learns from each step, the KV ledger. Steps in which",
        "nothing is decided are run in one go, but each arrival, prompt chunk and end of a stream is a decision of",
        "the core, at a cost that grows with the streams of the batch. Why TTFT and E2E differ was not looked into.",
    )
    return True


def _middle(runs: list[dict[str, Any]], name: str) -> float:
    return median(float(run[name]) for run in runs)


def _beside_line(replicas: int, requests: int, which: str, runs: list[dict[str, Any]]) -> str:
    one, cpu_s = runs[0], _middle(runs, "cpu_s")
    cells = [
        *(str(replicas), str(requests), which, f"{cpu_s / requests * 1e6:.0f}"),
        *(f"{_middle(runs, 'wall_s') / requests * 1e6:.0f}", f"{one['events'] / cpu_s:.0f}", str(one["steps"])),
        *(f"{cpu_s / one['steps'] * 1e6:.0f}", f"{one['ttft_p50_s']:.3f}", f"{one['ttft_p90_s']:.3f}"),
        *(f"{one['e2e_mean_s']:.2f}", f"{one['e2e_p90_s']:.2f}", f"{one['peak_mb']:.0f}", f"{one['load']:.1f}"),
    ]
    return f"| {' | '.join(cells)} |"


def many_requests(document: Document, asked: Asked) -> bool:
    """64 replicas in two shards on two cores."""
    title = "A million requests on 64 replicas"
    document.section(
        title,
        f"Goal: under {GOAL_S:g} s on two cores. Two routers with 32 replicas each (`simulate_sharded`: every request",
        "goes to one of them by a hash of its number, as a load balancer would do), a process for each; our defaults,",
        "step times with a spread of 3 %. `code`: 2048 prompt and 28 output tokens on average at 4 requests a second",
        "and replica; `conversation`: 1155 and 211 at 3.3.",
        "",
        "| trace | requests | wall s | cpu s (both) | cpu us/request | events/s (cpu) | tokens out | used | attained |"
        " peak MB (sum) | load |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for trace in (CODE, CONVERSATION):
        case = Case(
            kind="requests", traces=str(asked.traces), trace=trace, replicas=64, num_requests=asked.requests, shards=2
        )
        found = asked.store.found(f"ours {name_of(case)}", partial(ours, case))
        document.section(title, _line(trace.split("_")[-1].removesuffix(".csv"), found))
    return True


def _line(first: str, found: dict[str, Any]) -> str:
    cells = [
        *(first, f"{found['requests']:,}", f"{found['wall_s']:.0f}", f"{found['cpu_s']:.0f}"),
        *(f"{found['cpu_s'] / found['requests'] * 1e6:.0f}", f"{found['events'] / found['cpu_s']:.0f}"),
        *(f"{found['output_tokens']:,}", f"{found['utilisation']:.2f}", f"{found['attained']:.3f}"),
        *(f"{found['peak_mb']:.0f}", f"{found['load']:.1f}"),
    ]
    return f"| {' | '.join(cells)} |"


def many_replicas(document: Document, asked: Asked) -> bool:
    """One router over thousands of replicas."""
    title = "Ten thousand replicas"
    document.section(
        title,
        "One router, one process; prompts of 1155 and answers of 28 tokens on average, 4 requests a second and each;",
        "replicas without a data plane, each with a view at least every 0.5 s. `decision` and `view` are",
        "`ClusterCore.handle` of an arrival and of a replica's view, in microseconds of this thread.",
        "",
        "| replicas | requests | wall s | cpu s | cpu us/request | events/s (cpu) | tokens out | used | attained |"
        " peak MB | load | decision p50 | p99 | view p50 | p99 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for replicas, requests in (
        ((100, 5000), (1000, 20_000))
        if asked.quick
        else (
            (100, 20_000),
            (1000, 100_000),
            (10_000, asked.requests),
        )
    ):
        case = Case(kind="replicas", replicas=replicas, num_requests=requests, heartbeat_s=0.5)
        found = asked.store.found(f"ours {name_of(case)}", partial(ours, case))
        decision, view = found["decision_us"], found["view_us"]
        told = f" {decision['p50']:.0f} | {decision['p99']:.0f} | {view['p50']:.0f} | {view['p99']:.0f} |"
        document.section(title, _line(f"{replicas:,}", found) + told)
    return True


def memory(document: Document, asked: Asked) -> bool:
    """The same fleet with ten times the requests, and ten times again."""
    title = "Memory by requests served"
    document.section(title, "8 replicas, the code trace again and again.", "", "| requests | peak MB |", "|---|---|")
    for requests in (500, 2000) if asked.quick else (1000, 10_000):
        case = Case(kind="requests", traces=str(asked.traces), trace=CODE, replicas=8, num_requests=requests)
        found = asked.store.found(f"ours {name_of(case)}", partial(ours, case))
        document.section(title, f"| {requests:,} | {found['peak_mb']:.0f} |")
    return True


PARTS: dict[str, Callable[[Document, Asked], bool]] = {
    "vidur": beside_vidur,
    "requests": many_requests,
    "replicas": many_replicas,
    "memory": memory,
}

"""The parts of the evaluation: which jobs each consists of, and what it tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from contracts.request import Slo
from experiments.ecoserve import published
from experiments.ecoserve.picture import draw
from experiments.ecoserve.published import changes_shown, gains_shown
from experiments.ecoserve.scan import Budget, Found, NotRun, RunFailed
from experiments.ecoserve.seen import Pair, Seen
from experiments.ecoserve.setups import Setup, setup
from experiments.ecoserve.study import Job
from experiments.ecoserve.systems import ARTIFACT, MIXED, OURS, PAPER, PD, SARATHI, SYSTEMS, VLLM
from experiments.ecoserve.tables import ECOSERVE, HEAD, LEGEND, USUAL, change, gain, goodput_line, mean, rate
from experiments.load.document import Document
from simulator.cost import Apart
from simulator.scenarios import L20_34B

MODEL = "codellama2-34b"
CELLS = (
    ("L20", MODEL, "ShareGPT", 8),
    ("L20", MODEL, "LongBench", 8),
    ("A800", MODEL, "ShareGPT", 4),
    ("L20", "llama-30b", "ShareGPT", 8),
    ("H100", MODEL, "ShareGPT", 4),
    ("L20", MODEL, "Alpaca", 4),
    ("A800", "llama-30b", "ShareGPT", 4),
    ("L20", "qwen2-72b", "ShareGPT", 4),
    ("A800", MODEL, "LongBench", 4),
    ("H100", MODEL, "LongBench", 4),
    ("A800", "qwen2-72b", "ShareGPT", 4),
    ("H100", "llama-30b", "ShareGPT", 4),
    ("A800", MODEL, "Alpaca", 4),
    ("H100", "qwen2-72b", "ShareGPT", 4),
    ("L20", "llama-30b", "LongBench", 8),
    ("L20", "qwen2-72b", "LongBench", 8),
    ("L20", "llama-30b", "Alpaca", 4),
    ("L20", "qwen2-72b", "Alpaca", 4),
    ("H100", MODEL, "Alpaca", 4),
)
"""Most telling first. Four replicas instead of eight where a run would else be of many thousand requests."""
SCALING_LIFETIMES = 5.0
"""Of a request, as long as one run: 120 s. Shorter ones told nothing (streams had not gathered)."""
PICTURES = 3
"""Set-ups that get a picture."""


def goodput(document: Document, budget: Budget, seen: Seen, cells: Sequence[tuple[str, str, str, int]] = CELLS) -> None:
    """Goodput of every system on the set-ups, and the gains beside the paper's."""
    setups = [setup(cluster, model, data, count) for cluster, model, data, count in cells]
    for one in setups:
        document.plan(one.name, f"goodput: {one.name}")
    table = seen.goodput
    for number, one in enumerate(setups):
        title = (
            f"Goodput {number + 1}: {one.name}, targets {one.load.slo.ttft_s:g} s and {one.load.slo.tpot_s * 1e3:g} ms"
        )
        document.head(title, *([LEGEND, ""] if not table else []), *HEAD)
        for system, found in _scanned([Job(setup=one, system=name) for name in SYSTEMS], budget, document, title):
            table.setdefault(one, {})[system] = found
            document.section(title, goodput_line(found))
        document.done(one.name)
        if one not in table:  # its systems are told one by one as not run
            continue
        name = f"goodput-{number + 1}.png"
        if number < PICTURES and draw(table[one].values(), one.name, budget.seeds, document.beside(name)):
            document.section(title, "", f"![attainment against rate]({name})")
        document.replace("Gains beside the paper's", *_gains(table))


def _gains(table: Mapping[Setup, Mapping[str, Found]]) -> Iterator[str]:
    """Mean over the set-ups there are of our goodput, and of EcoServe's artifact, over each baseline's, at P90."""
    yield "Mean gain at P90 by EcoServe's clock over the set-ups above (how many), the paper's over all of its own. A"
    yield "goodput beyond the scanned rates counts as the highest of them."
    yield from ("", "| set-ups | over | EcoServe's artifact, here | ours (`min`), here | the paper's EcoServe |")
    yield "| --- | --- | ---: | ---: | ---: |"
    for name, clusters in (("L20 and A800", {"L20", "A800"}), ("H100", {"H100"})):
        rows = [by for one, by in table.items() if one.cluster in clusters]
        for system, printed in published.P90_GAINS[name].items():
            yield _gain_line(name, system, gains_shown(printed), rows)
    for data in published.DATA_GAINS:
        rows = [by for one, by in table.items() if one.data == data]
        for system in (VLLM, SARATHI, PD):
            yield _gain_line(data, system, gains_shown(published.of_data(data, system)), rows)


def _gain_line(name: str, system: str, printed: str, rows: Sequence[Mapping[str, Found]]) -> str:
    cells = []
    for ours in (ARTIFACT, OURS):
        both = [by for by in rows if ours in by and system in by]
        cells.append(mean([gain(by[ours], by[system], 0.9, ECOSERVE) for by in both]))
    return f"| {name} | {system} | {' | '.join(cells)} | {printed} |"


def hybrid(document: Document, budget: Budget, seen: Seen) -> None:
    """What a mixed step costs decides between chunks and phases: roofline, the same with nothing shared, additive."""
    one = setup("L20", MODEL, "ShareGPT", 8)
    title = "What a mixed step costs"
    document.head(
        title,
        f"{one.name}. Roofline: the weights are read once, and linear layers take the root of the summed squares of "
        "memory and compute time, so that decodes add little to a chunk. Additive: 20 ms + 0.29 ms a token + "
        "what each row and its context take, fixed part shared. Apart: the "
        "roofline, but of a mixed step its prefill and its decode part one after the other; others have none, so "
        "that their roofline lines hold.",
        "",
        *(HEAD[0].replace("| system", "| cost | system"), "| --- " + HEAD[1]),
    )
    costs = {"roofline": None, "apart": Apart(of=one.deployment.cost), "additive": L20_34B}
    for name, cost in costs.items():
        systems = (SARATHI, MIXED) if name == "apart" else (SARATHI, MIXED, OURS, ARTIFACT, VLLM)
        jobs = [Job(setup=one, system=system, cost=cost) for system in systems]
        for system, found in _scanned(jobs, budget, document, title, f"cost {name}"):
            seen.hybrid[name, system] = found
            document.section(title, f"| {name} {goodput_line(found)}")


def scaling(document: Document, budget: Budget, seen: Seen, counts: Sequence[int] = (1, 2, 4, 8, 16)) -> None:
    """Goodput by the number of replicas."""
    title = "Scaling from 1 to 16 replicas"
    longer = msgspec.structs.replace(budget, duration=SCALING_LIFETIMES)
    document.head(
        title,
        f"{MODEL} on L20, ShareGPT, P90; runs of five lifetimes of a request (120 s). The paper: {published.SCALING}.",
        "",
        "| system | replicas | goodput, usual / EcoServe's clock | per replica | times that of one |",
        "| --- | ---: | ---: | ---: | ---: |",
    )
    for count in counts:
        one = setup("L20", MODEL, "ShareGPT", count)
        jobs = [Job(setup=one, system=system, steps=(0.55, 0.7, 0.85, 1.0, 1.15)) for system in (VLLM, ARTIFACT, OURS)]
        for system, found in _scanned(jobs, longer, document, title):
            seen.scaling[system, count] = found
            base = seen.scaling.get((system, 1))
            usual, eco = found.goodput(0.9, USUAL)[0], found.goodput(0.9, ECOSERVE)[0]
            times = [None if base is None else gain(found, base, 0.9, clock) for clock in (USUAL, ECOSERVE)]
            shown = " / ".join("-" if value is None else f"{value:.2f}" for value in times)
            both = f"{rate(found, 0.9, USUAL)} / {rate(found, 0.9, ECOSERVE)}"
            line = f"| {system} | {count} | {both} | {usual / count:.2f} / {eco / count:.2f} | {shown} |"
            document.section(title, line)


def tightening(document: Document, budget: Budget, seen: Seen) -> None:
    """From (5 s, 100 ms) to (1 s, 50 ms) at P99."""
    one = setup("A800", MODEL, "ShareGPT", 4)
    changed = {"slo": Slo(ttft_s=1.0, tpot_s=0.05), "steps": (0.15, 0.3, 0.45, 0.6, 0.75)}
    _before_and_after(
        document,
        budget,
        "Tighter targets",
        f"{one.name}, (5 s, 100 ms) to (1 s, 50 ms)",
        one,
        {},
        changed,
        seen.tightening,
        {name: changes_shown(one, published.TIGHTENED.get(name, "")) for name, one in published.TIGHTENING.items()},
    )


def bursts(document: Document, budget: Budget, seen: Seen) -> None:
    """Gaps of CV 1.2, then 2.0, at P99."""
    one = setup("A800", MODEL, "ShareGPT", 4)
    printed = {name: changes_shown(changed) for name, changed in published.BURSTS.items()}
    _before_and_after(
        document, budget, "Bursts", f"{one.name}, CV 1.2 to 2.0", one, {"cv": 1.2}, {"cv": 2.0}, seen.bursts, printed
    )


def _before_and_after(
    document: Document, budget: Budget, title: str, what: str, one: Setup,
    before: dict[str, object], after: dict[str, object], seen: dict[str, Pair], printed: Mapping[str, str],
) -> None:  # fmt: skip
    document.head(
        title,
        f"{what}; goodput in req/s (change).",
        "",
        "| system | P90, EcoServe's clock | P99, usual clock | P99, EcoServe's clock | the paper (P99) |",
        "| --- | ---: | ---: | ---: | --- |",
    )
    for system in (VLLM, SARATHI, PD, PAPER, ARTIFACT, OURS, MIXED):
        jobs = [Job(setup=one, system=system, **kind) for kind in (before, after)]  # type: ignore[arg-type]
        both = [found for _, found in _scanned(jobs, budget, document, title)]
        if len(both) == len(jobs):
            seen[system] = (both[0], both[1])
            cells = [
                change(both[0], both[1], share, clock)
                for share, clock in ((0.9, ECOSERVE), (0.99, USUAL), (0.99, ECOSERVE))
            ]
            document.section(title, f"| {system} | {' | '.join(cells)} | {printed.get(system, '-')} |")


def ablations(document: Document, budget: Budget, seen: Seen) -> None:
    """Rolling in a ring against no order, and slack against fixed turns."""
    title = "Ablations: rolling and adaptive"
    document.head(
        title,
        "The paper shows figures only: a random next replica is lower in all three models, fixed intervals of 1/4 to 1 "
        "TTFT target always below adaptive ones.",
        "",
        *(HEAD[0].replace("| system", "| set-up | system"), "| --- " + HEAD[1]),
    )
    fixed = [(f"fixed turns, {part:g} TTFT", f"fixed_interval({part:g})", False) for part in (0.25, 0.5, 0.75, 1.0)]
    kinds = [
        ("ours, ring", "min", False),
        ("ours, no order", "min", True),
        ("paper's rule, ring", "ecoserve_paper", False),
        ("paper's rule, no order", "ecoserve_paper", True),
        *fixed,
    ]
    for cluster, replicas in (("L20", 8), ("A800", 4)):
        one = setup(cluster, MODEL, "ShareGPT", replicas)
        jobs = [Job(setup=one, system=name, rules=(rule,), scattered=mixed) for name, rule, mixed in kinds]
        for name, found in _scanned(jobs, budget, document, title):
            seen.ablations[cluster, name] = found
            document.section(title, f"| {cluster} {goodput_line(found)}")


def _scanned(
    jobs: Sequence[Job], budget: Budget, document: Document, title: str, under: str = ""
) -> Iterator[tuple[str, Found]]:
    """Each job's scan as it comes; one that fails or was not run is told, with what it was to be run `under`."""
    for job in jobs:
        try:
            yield job.system, job.run(budget)
        except NotRun:
            where = ", ".join([job.setup.name, *([under] if under else [])])
            document.plan(f"{title}, {job}", job.system, f"{title.split(':', maxsplit=1)[0]} ({where})")
        except RunFailed as error:
            document.section(title, f"| {job.system}: {error} |")


PARTS = {
    "scaling": scaling,
    "hybrid": hybrid,
    "tightening": tightening,
    "bursts": bursts,
    "ablations": ablations,
    "goodput": goodput,
}
"""Goodput last: it is the longest, and its lines are in order of what they tell."""

"""RESULT.md and the picture of `auto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from experiments.auto.fleets import AUTO, Fleet
from experiments.auto.loads import Load
from experiments.auto.runs import FACTORS, HOPELESS, SHARE, WARM_UP_S, WORTH_A_RUN, Scan
from experiments.load.origin import origin
from simulator.grid import Row

GOAL = 0.97

HEAD = f"""# `auto` against the best static layout known in hindsight

{{origin}}

`auto` begins with all replicas mixed, its router chooses the layout of each request and its planner gives the roles.
The static fleets are all mixed, all alternating, every P:D ratio, and two mixed replicas beside one pair of pools;
which of them is best is known only afterwards. All have four replicas. The first {WARM_UP_S:.0f} s of each run are not
counted. Attainment: share of requests within both targets by the usual clock. Goal: at least {GOAL:.0%} of the best.
"""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One load that changes, one seed: a row for each fleet."""

    load: Load
    seed: int
    rows: tuple[tuple[Fleet, Row], ...]

    @property
    def attained(self) -> dict[str, float]:
        """By fleet, usual clock."""
        return {fleet.name: 0.0 if row.error else row.number("usual.attained") for fleet, row in self.rows}

    @property
    def best(self) -> str:
        """The static fleet with the highest attainment."""
        statics = {name: share for name, share in self.attained.items() if name != AUTO}
        return max(statics, key=lambda name: statics[name])

    def told(self) -> str:
        """One line."""
        shares = ", ".join(f"{name} {share:.3f}" for name, share in self.attained.items())
        return f"{self.load.name}, seed {self.seed}: {shares}"


def write_result(folder: Path, scans: Sequence[Scan], changed: Sequence[Changed], requests: int) -> None:
    """The whole file, with as much as is known."""
    lines = [HEAD.format(origin=origin("python -m experiments.auto"))]
    lines += _changed(changed)
    lines += _traces(scans, requests)
    (folder / "RESULT.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _changed(changed: Sequence[Changed]) -> Iterator[str]:
    yield "## Where the load changes within the run"
    yield ""
    if not changed:
        yield "Not run yet."
        return
    names = list(changed[0].attained)
    yield "| load | seed | " + " | ".join(names) + " | auto / best static | roles changed |"
    yield "| --- | ---: | " + "---: | " * (len(names) + 2)
    for one in changed:
        shares = " | ".join(f"{share:.1%}" for share in one.attained.values())
        roles = next(row for fleet, row in one.rows if fleet.name == AUTO)
        moved = "-" if roles.error else str(int(roles.number("num_roles")) - len(names[:4]))
        ratio = one.attained[AUTO] / one.attained[one.best] if one.attained[one.best] else 0.0
        yield f"| {one.load.name} | {one.seed} | {shares} | {ratio:.3f} | {moved} |"
    yield ""
    wins = sum(one.attained[AUTO] > one.attained[one.best] for one in changed)
    yield f"`auto` is above the best static fleet in {wins} of {len(changed)} runs."
    for one in {one.load.name: one for one in changed}.values():
        load, slo = one.load, one.load.slo
        targets = f"TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1e3:g} ms"
        yield f"- {load.name}: {load.model} on {load.hardware}, {targets}, links of 25 Gbit/s at the start."
    yield ""


def _traces(scans: Sequence[Scan], requests: int) -> Iterator[str]:
    yield "## Recorded traces"
    yield ""
    if not scans:
        yield "Not run yet."
        return
    yield f"{requests} requests of each trace from the 1,000th on (Mooncake a third of that), time-scaled to"
    yield f"rates of {FACTORS[0]:g} to {FACTORS[-1]:g} times what the closed forms say the best static fleet carries. A"
    yield f"scan ends where less than {HOPELESS:.0%} is attained. Goodput: the rate at which attainment falls below"
    yield f"{SHARE:.0%}, on a line between two rates. Knee: the highest scanned rate at which the best static fleet has"
    yield f"{SHARE:.0%}. Static pools predicted to carry less than {WORTH_A_RUN:.0%} of the best were not run."
    yield ""
    yield (
        "| trace | link Gbit/s | best static | its goodput /s | auto's | ratio | knee /s | best static there "
        "| auto there | ratio | roles changed |"
    )
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    ratios = []
    for load, link in dict.fromkeys((scan.load, scan.link_gbit) for scan in scans):
        here = [scan for scan in scans if (scan.load, scan.link_gbit) == (load, link)]
        auto = next(scan for scan in here if scan.fleet == AUTO)
        best = max((scan for scan in here if scan.fleet != AUTO), key=lambda scan: scan.goodput)
        knee = max((rate for rate, share, _ in best.points if share >= SHARE), default=best.points[0][0])
        in_goodput = auto.goodput / best.goodput if best.goodput else 0.0
        in_share = auto.at(knee) / best.at(knee) if best.at(knee) else 0.0
        ratios.append(max(in_goodput, in_share))
        yield (
            f"| {load} | {link:g} | {best.fleet} | {best.goodput:.2f} | {auto.goodput:.2f} | {in_goodput:.3f} "
            f"| {knee:g} | {best.at(knee):.1%} | {auto.at(knee):.1%} | {in_share:.3f} | {auto.role_changes} |"
        )
    yield ""
    good = sum(ratio >= GOAL for ratio in ratios)
    yield f"At least {GOAL:.0%} of the best static fleet, in goodput or at its knee, in {good} of {len(ratios)} rows."
    yield ""
    yield "| trace | link Gbit/s | fleet | rate: attained usual clock (EcoServe's) |"
    yield "| --- | ---: | --- | --- |"
    for scan in scans:
        points = ", ".join(f"{rate:g}: {usual:.1%} ({other:.1%})" for rate, usual, other in scan.points)
        yield f"| {scan.load} | {scan.link_gbit:g} | {scan.fleet} | {points}{scan.error} |"

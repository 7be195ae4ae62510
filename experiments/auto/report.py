"""RESULT.md of `auto`: every line of it follows from the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from experiments.auto.fleets import AUTO, Fleet
from experiments.auto.loads import CHANGING_GBIT, HORIZON_S, Load, recorded
from experiments.auto.runs import FACTORS, HOPELESS, SETTLED_S, SHARE, WORTH_A_RUN, Scan
from experiments.load.origin import origin
from simulator.drawing import missing
from simulator.grid import Row

GOAL = 0.97
COURSE = "course.png"
"""The picture of the first trace over the first link."""

HEAD = f"""# `auto` against the best static layout known in hindsight

{{origin}}

`auto` begins with all replicas mixed, its router chooses the layout of each request and its planner gives the roles.
The static fleets are all mixed, all alternating, every P:D ratio, and two mixed replicas beside one pair of pools;
which of them is best is known only afterwards. All have four replicas, all begin empty. Attainment: share of requests
within both targets by the usual clock, of the whole run and (in brackets) of what arrived after {SETTLED_S:.0f} s.
Goal: at least {GOAL:.0%} of the best static fleet, and above it where the load changes within the run.
"""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """All that the whole experiment would run: (trace, Gbit/s), and (changing load, seed)."""

    traces: tuple[tuple[str, float], ...]
    changing: tuple[tuple[str, int], ...]


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One load that changes, one seed: a row for each fleet."""

    load: Load
    seed: int
    rows: tuple[tuple[Fleet, Row], ...]

    def attained(self, figure: str = "usual.attained") -> dict[str, float]:
        """By fleet: of the whole run, or `settled`."""
        return {fleet.name: 0.0 if row.error else row.number(figure) for fleet, row in self.rows}

    def best(self, figure: str = "usual.attained") -> str:
        """The static fleet with the highest attainment."""
        statics = {name: share for name, share in self.attained(figure).items() if name != AUTO}
        return max(statics, key=lambda name: statics[name])

    def ratio(self, figure: str = "usual.attained") -> float:
        """`auto` over the best static fleet."""
        shares, best = self.attained(figure), self.best(figure)
        return shares[AUTO] / shares[best] if shares[best] else 0.0

    def told(self) -> str:
        """One line."""
        shares = ", ".join(f"{name} {share:.3f}" for name, share in self.attained().items())
        return f"{self.load.name}, seed {self.seed}: {shares}; {self.ratio():.3f}, settled {self.ratio('settled'):.3f}"


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """One trace over one link, at the highest scanned rate at which the best static fleet has `SHARE`."""

    load: str
    link_gbit: float
    best: Scan
    auto: Scan
    rate: float

    @classmethod
    def of(cls, scans: Sequence[Scan]) -> Knee:
        """Of the scans of one trace over one link."""
        auto = next(scan for scan in scans if scan.fleet == AUTO)
        best = max(
            (scan for scan in scans if scan.fleet != AUTO and scan.points),
            key=lambda scan: (scan.goodput, scan.points[0][1]),
        )
        rate = max((rate for rate, share, _ in best.points if share >= SHARE), default=best.points[0][0])
        return cls(load=auto.load, link_gbit=auto.link_gbit, best=best, auto=auto, rate=rate)

    def ratio(self, part: int) -> float:
        """`auto` over the best static fleet at the knee: whole run (1), settled (2)."""
        best = self.best.at(self.rate, part)
        return self.auto.at(self.rate, part) / best if best else 0.0

    @property
    def exists(self) -> bool:
        """Whether a static fleet has `SHARE` at any scanned rate; else `rate` is the lowest one."""
        return self.best.at(self.rate) >= SHARE

    @property
    def in_goodput(self) -> float:
        """Goodput of `auto` over that of the best static fleet; 0 where that has none."""
        return self.auto.goodput / self.best.goodput if self.best.goodput else 0.0

    @property
    def told(self) -> tuple[str, str]:
        """The ratio of goodputs and the knee, as they are printed."""
        ratio = f"{self.in_goodput:.3f}" if self.best.goodput else "-"
        return ratio, f"{self.rate:g}" if self.exists else f"none ({self.rate:g})"


def knees(scans: Sequence[Scan]) -> list[Knee]:
    """One for each trace and link."""
    places = dict.fromkeys((scan.load, scan.link_gbit) for scan in scans)
    return [Knee.of([s for s in scans if (s.load, s.link_gbit) == place]) for place in places]


def course_name(load: Load) -> str:
    """The picture of a load that changes."""
    return f"course-{'-'.join(word for word in load.name.replace('.', '').split() if word.isalnum())}.png"


def write_result(folder: Path, scans: Sequence[Scan], changed: Sequence[Changed], planned: Planned) -> None:
    """The whole file, with as much as is known, and the pictures beside it."""
    lines = [HEAD.format(origin=origin("python -m experiments.auto"))]
    lines += _changed(changed, folder)
    lines += _traces(scans, folder)
    lines += _reading(scans, changed)
    lines += _not_run(scans, changed, planned)
    (folder / "RESULT.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _picture(folder: Path, name: str, what: str) -> Iterator[str]:
    """If it was drawn."""
    if missing() is None and (folder / name).is_file():
        yield ""
        yield f"![{what}]({name})"


def _changed(changed: Sequence[Changed], folder: Path) -> Iterator[str]:
    yield "## Where the load changes within the run"
    yield ""
    if not changed:
        yield "Not run."
        yield ""
        return
    names = list(changed[0].attained())
    yield "| load | seed | " + " | ".join(names) + " | auto / best static | after | planner moved |"
    yield "| --- | ---: | " + "---: | " * (len(names) + 3)
    for one in changed:
        whole, settled = one.attained(), one.attained("settled")
        shares = " | ".join(f"{whole[name]:.1%} ({settled[name]:.1%})" for name in names)
        row = next(row for fleet, row in one.rows if fleet.name == AUTO)
        moves = "-" if row.error else f"{row.number('moves'):.0f}"
        yield f"| {one.load.name} | {one.seed} | {shares} | {one.ratio():.3f} | {one.ratio('settled'):.3f} | {moves} |"
    yield ""
    yield f"After: the ratio after {SETTLED_S:.0f} s. The best static fleet is chosen for each of the two by itself."
    yield ""
    loads = list({one.load.name: one.load for one in changed}.values())
    for load in loads:
        turns = "".join(f"; from {at_s:.0f} s {word}" for at_s, word in load.turns)
        yield f"- {load.name}: {load.setting}; links of {CHANGING_GBIT:g} Gbit/s at the start{turns}."
    yield ""
    yield "In the pictures dotted lines are changes of roles by `auto`, with the mix from then on (M mixed, A"
    yield "alternating, P prefill, D decode: `3P 1D` is three prefill replicas and one decode replica), full lines what"
    yield "changes from outside."
    for load in loads:
        yield from _picture(folder, course_name(load), f"attainment over time, {load.name}")
    yield ""


def _traces(scans: Sequence[Scan], folder: Path) -> Iterator[str]:
    yield "## Recorded traces"
    yield ""
    if not scans:
        yield "Not run."
        yield ""
        return
    yield f"Requests of each trace from the 1,000th on, for {HORIZON_S:.0f} s, time-scaled to {FACTORS[0]:g} to"
    yield f"{FACTORS[-1]:g} of what the closed forms say the best static fleet carries. A scan ends where less than"
    yield f"{HOPELESS:.0%} is attained. Goodput: the rate at which attainment of the whole run falls below"
    yield f"{SHARE:.0%}, on a line between two rates. Knee: the highest scanned rate at which the best static fleet has"
    yield f"{SHARE:.0%}; where it has that at none, `none` and the lowest rate, of which the row then is. Static fleets"
    yield f"predicted to carry less than {WORTH_A_RUN:.0%} of the best were not run."
    yield ""
    shown = {scan.load for scan in scans}
    for load in recorded(Path()):
        if load.name in shown:
            cached = "; prefixes cached, by the hashes of the trace" if load.prefix_cache else ""
            yield f"- {load.name}: {load.setting}{cached}."
    yield ""
    yield (
        "| trace | link Gbit/s | best static | its goodput /s | auto's | ratio | knee /s | best static there "
        "| auto there | ratio | after | planner moved (all rates) |"
    )
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for knee in knees(scans):
        there, auto = ((s.at(knee.rate), s.at(knee.rate, 2)) for s in (knee.best, knee.auto))
        ratio, rate = knee.told
        yield (
            f"| {knee.load} | {knee.link_gbit:g} | {knee.best.fleet} | {knee.best.goodput:.2f} "
            f"| {knee.auto.goodput:.2f} | {ratio} | {rate} | {there[0]:.1%} ({there[1]:.1%}) "
            f"| {auto[0]:.1%} ({auto[1]:.1%}) | {knee.ratio(1):.3f} | {knee.ratio(2):.3f} | {knee.auto.moves} |"
        )
    yield from _picture(folder, COURSE, "attainment over time, the first trace over the first link")
    yield ""
    yield "| trace | link Gbit/s | fleet | rate: attained (settled) |"
    yield "| --- | ---: | --- | --- |"
    for scan in scans:
        points = ", ".join(f"{rate:g}: {whole:.1%} ({settled:.1%})" for rate, whole, settled in scan.points)
        yield f"| {scan.load} | {scan.link_gbit:g} | {scan.fleet} | {points}{scan.error} |"
    yield ""


def _reading(scans: Sequence[Scan], changed: Sequence[Changed]) -> Iterator[str]:
    """What the numbers say of the goal."""
    yield "## What these runs say"
    yield ""
    if scans:
        every = knees(scans)
        found = [knee for knee in every if knee.exists]
        whole, settled = ([knee for knee in found if knee.ratio(part) >= GOAL] for part in (1, 2))
        goodput = [knee for knee in found if knee.in_goodput >= GOAL]
        yield (
            f"- At the knee `auto` has at least {GOAL:.0%} of the best static fleet in {len(whole)} of the "
            f"{len(found)} rows that have one in the whole run, in {len(settled)} after {SETTLED_S:.0f} s; in goodput "
            f"in {len(goodput)}."
        )
        for knee in every:
            if not knee.exists:
                yield (
                    f"- No knee was found on {knee.load} over {knee.link_gbit:g} Gbit/s: no static fleet has "
                    f"{SHARE:.0%} at any scanned rate. Its row, not counted above, is of the lowest one: "
                    f"{knee.ratio(1):.3f}."
                )
            if knee.ratio(1) < GOAL:
                why = "its start costs that" if knee.ratio(2) >= GOAL else "not only for its start"
                yield (
                    f"- **Missed** on {knee.load} over {knee.link_gbit:g} Gbit/s: {knee.ratio(1):.3f} of "
                    f"{knee.best.fleet} at {knee.rate:g} requests/s, {why} ({knee.ratio(2):.3f} after)."
                )
    if changed:
        above = [one for one in changed if one.ratio() > 1.0]
        yield f"- Where the load changes `auto` is above the best static fleet in {len(above)} of {len(changed)} runs."
        for one in changed:
            if one.ratio() <= 1.0:
                word = "**Missed**" if one.ratio() < GOAL else "Not above"
                yield f"- {word}: {one.load.name}, seed {one.seed}: {one.ratio():.3f} of {one.best()}."
    yield ""


def _not_run(scans: Sequence[Scan], changed: Sequence[Changed], planned: Planned) -> Iterator[str]:
    traces = {(scan.load, scan.link_gbit) for scan in scans}
    written = {(one.load.name, one.seed) for one in changed}
    yield "## What was not run"
    yield ""
    lacking = [f"{load} over {link:g} Gbit/s" for load, link in planned.traces if (load, link) not in traces]
    lacking += [f"{load}, seed {seed}" for load, seed in planned.changing if (load, seed) not in written]
    yield from (f"- {name}" for name in lacking)
    if not lacking:
        yield "Of what was planned everything was run. Recorded traces are one stretch each, without a second seed."

"""What the tables say, computed from their rows; what the paper says of the same stands beside it.

Written by hand are the paper's figures, causes that do not depend on a run, and the rules that choose a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.dynamic_chunk.loads import AZURE, SHAREGPT
from experiments.dynamic_chunk.tables import best_fixed, bubbles, change, mean
from simulator.grid import Row

ByPolicy = Mapping[str, Sequence[Row]]
NEAR = 0.05
GOOD = 0.9
FOLLOWING = ("deadline", "dcp_greedy", "dcp_predictive")
PAPER_BEST = "sarathi(512)"
PAPER = {
    (AZURE, "dcp_greedy"): (-0.19, -0.18),
    (AZURE, "dcp_predictive"): (-0.35, -0.31),
    (SHAREGPT, "dcp_predictive"): (-0.36, -0.24),
}
"""Change of mean TPOT and of mean E2E against the best fixed chunk."""
PAPER_DELAY_S = -4.1
RULE = (
    f"A change *agrees* with the paper's if it is within {100 * NEAR:.0f} points of it; else it has the same sign and "
    "is *more* or *less*, or it does *not agree*."
)


def reading(
    four: Mapping[str, ByPolicy], fewer: Mapping[str, ByPolicy], delayed: Sequence[Row], scanned: Sequence[Row]
) -> list[str]:
    """The last section: of the tables with four stages by data, those with fewer by name, the other two row by row."""
    told = [
        *(line for data, found in four.items() for line in _four(data, found)),
        *(line for name, found in fewer.items() for line in _fewer(name, found)),
        *_delay(delayed),
        *_rates(scanned),
        *_spread(four),
    ]
    return [RULE, "", *[f"- {line}" for line in told]] if told else ["Nothing to compare yet."]


def verdict(here: float, paper: float) -> str:
    """By `RULE`; both are changes as a share."""
    if abs(here - paper) <= NEAR:
        return "agrees"
    if here * paper <= 0.0:
        return "does not agree"
    return "more" if abs(here) > abs(paper) else "less"


def _four(data: str, found: ByPolicy) -> Iterator[str]:
    best = best_fixed(found)
    if best is None:
        return
    for policy in FOLLOWING:
        if policy not in found:
            continue
        rows, base = found[policy], found[best]
        share, least = 100 * mean(rows, "usual.attained"), 100 * mean(base, "usual.attained")
        yield (
            f"{data}, `{policy}`: {share:.1f} % within the targets, {_points(share - least)} the best fixed chunk "
            f"(`{best}`, {least:.1f} %); bubbles {100 * bubbles(base):.1f} -> {100 * bubbles(rows):.1f} %, "
            f"{_changes(data, policy, rows, base)}."
        )
        if best != PAPER_BEST and PAPER_BEST in found and (data, policy) in PAPER:
            yield (
                f"{data}, `{policy}`: against `{PAPER_BEST}`, the paper's best fixed chunk, "
                f"{_changes(data, policy, rows, found[PAPER_BEST])}."
            )


def _changes(data: str, policy: str, rows: Sequence[Row], base: Sequence[Row]) -> str:
    here = [change(rows, base, name) for name in ("usual.tpot_s.mean", "e2e_s.mean")]
    paper = PAPER.get((data, policy))
    told = []
    for name, value, theirs in zip(("TPOT", "E2E"), here, paper or (None, None), strict=True):
        beside = "" if theirs is None else f" (paper {100 * theirs:+.0f} %: {verdict(value, theirs)})"
        told.append(f"{name} {100 * value:+.0f} %{beside}")
    return ", ".join(told)


def _points(points: float) -> str:
    if abs(points) < 0.05:
        return "as many as with"
    return f"{abs(points):.1f} points {'more' if points > 0.0 else 'fewer'} than with"


def _fewer(name: str, found: ByPolicy) -> Iterator[str]:
    if len(found) > 1:
        shares = {policy: 100 * mean(rows, "usual.attained") for policy, rows in found.items()}
        listed = ", ".join(f"`{policy}` {share:.1f} %" for policy, share in shares.items())
        yield f"{name}: {listed}, {max(shares.values()) - min(shares.values()):.1f} points between first and last."


def _delay(rows: Sequence[Row]) -> Iterator[str]:
    by_name = {(str(row["policy"]), str(row["micro_batches"])): row for row in rows}
    for policy in dict.fromkeys(str(row["policy"]) for row in rows):
        kept, delayed = by_name.get((policy, "kept")), by_name.get((policy, "delayed"))
        if kept is None or delayed is None:
            continue
        less_s = delayed.number("e2e_s.mean") - kept.number("e2e_s.mean")
        points = 100 * (delayed.number("usual.attained") - kept.number("usual.attained"))
        yield (
            f"Delay scheduling under `{policy}`: mean E2E {less_s:+.1f} s against streams kept in their batches "
            f"(paper {PAPER_DELAY_S:+.1f} s), {points:+.1f} points within the targets, D-D bubbles "
            f"{100 * kept.number('d_d'):.1f} -> {100 * delayed.number('d_d'):.1f} %. It acts only when no prompt waits."
        )


def _rates(rows: Sequence[Row]) -> Iterator[str]:
    for scale in dict.fromkeys(row.number("scale") for row in rows):
        here = [row for row in rows if row.number("scale") == scale]
        limits = {}
        for policy in dict.fromkeys(str(row["policy"]) for row in here):
            held = [r.number("rate") for r in here if r["policy"] == policy and r.number("usual.attained") >= GOOD]
            limits[policy] = max(held, default=0.0)
        listed = ", ".join(f"`{policy}` {f'{rate:g}/s' if rate else 'none'}" for policy, rate in limits.items())
        none = "" if all(limits.values()) else " (none: fewer at every scanned rate)"
        yield (
            f"Targets times {scale:g}: the highest scanned rate with {100 * GOOD:.0f} % within the targets: "
            f"{listed}{none}."
        )
        for rate in dict.fromkeys(row.number("rate") for row in here):
            first = sorted((r for r in here if r.number("rate") == rate), key=lambda r: -r.number("usual.attained"))
            order = ", ".join(f"`{r['policy']}` {100 * r.number('usual.attained'):.1f} %" for r in first[:3])
            yield f"Targets times {scale:g}, {rate:g}/s: the first three are {order}."


def _spread(four: Mapping[str, ByPolicy]) -> Iterator[str]:
    apart = [
        (100 * (max(shares) - min(shares)), data, policy)
        for data, found in four.items()
        for policy, rows in found.items()
        if len(shares := [row.number("usual.attained") for row in rows]) > 1
    ]
    if apart:
        points, data, policy = max(apart)
        yield (
            f"Seeds differ by up to {points:.1f} points within the targets (`{policy}` on {data}), so that few points "
            "between two policies mean little. A run ends with a long tail of the longest answers (E2E P99)."
        )

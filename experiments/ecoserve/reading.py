"""What the tables say, computed from their rows: sentence by sentence beside the paper's figure, by one rule.

What is written by hand are causes that do not depend on a run; each stands where a comparison calls for it.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from experiments.ecoserve import published
from experiments.ecoserve.comparison import NEAR, Figure, Verdict, change_of, gain_of, gains
from experiments.ecoserve.reading_own import ablations, clocks, hybrid, leaders, mitosis
from experiments.ecoserve.scan import Found
from experiments.ecoserve.seen import Pair, Seen
from experiments.ecoserve.systems import ARTIFACT, OURS, PD, SARATHI, VLLM
from experiments.ecoserve.tables import ECOSERVE

WIDTH = 118
RULE = (
    f"Within {100 * NEAR:.0f} % of the paper's figure a figure here *agrees*; else, if both are gains or both losses, "
    "it has the *same sign only*; else it *does not agree*. Where a system held at every rate scanned its goodput is a "
    "bound, and so is a gain over it or by it: what lies beyond a bound is *undecided*. By EcoServe's clock, gains at "
    "P90, changes at P99, as the paper has them."
)
CAUSES = {
    VLLM: "All systems here are rules on one engine without pauses of its own: what slows a real baseline down beside "
    "its rule is in the paper's gains and not in these.",
    SARATHI: "Chunks get the best of three sizes and read the weights once for a mixed step, so that decodes add "
    "little to them. With the wrong size, or where both parts are paid (`What a mixed step "
    "costs`), they hold less.",
    PD: "Static P/D gets the ratio that is best for the load, the whole rate of the link, no pauses and no limits of "
    "buffers. With grouped-query attention the KV of a token is small, and a slow link carries it; with full "
    "attention the link decides.",
    "scaling": "A larger fleet balances its load better under any rule: the growth of prefill priority is that part, "
    "and only what the phased rules have beyond it is rolling.",
    "changes": "In runs as short as with `--coarse` P99 rests on few requests.",
}
Verdicts = Counter[Verdict]


def reading(seen: Seen) -> list[str]:
    """The section `What it says`, of whatever was found."""
    counted: Verdicts = Counter()
    told = [
        *_gains(seen, counted),
        *_scaling(seen, counted),
        *_changes("Tighter targets, (5 s, 100 ms) to (1 s, 50 ms)", seen.tightening, published.TIGHTENING, counted),
        *_changes("Bursts, CV 1.2 to 2.0", seen.bursts, published.BURSTS, counted),
        *ablations(seen, counted),
        *mitosis(seen, counted),
        *hybrid(seen),
        *clocks(seen),
        *leaders(seen),
    ]
    if not told:
        return ["Nothing to compare yet."]
    words = {Verdict.AGREES: "agree", Verdict.SIGN: "have the same sign only", Verdict.NOT: "do not agree"}
    total = ", ".join(f"{counted[one]} {words.get(one, one.value)}" for one in Verdict if counted[one])
    head = f"Of {counted.total()} figures and pictures of the paper with one beside them here: {total or 'none'}."
    return [*textwrap.wrap(RULE, WIDTH), *textwrap.wrap(head, WIDTH), "", *_wrapped(told)]


def _wrapped(told: Iterable[str]) -> Iterator[str]:
    for sentence in told:
        yield from textwrap.wrap(
            sentence, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )


def _gains(seen: Seen, counted: Verdicts) -> Iterator[str]:
    """By clusters and by data sets, over each kind of baseline; then why, if one does not agree."""
    for system in (VLLM, SARATHI, PD):
        off = False
        for name, clusters in (("L20 and A800", {"L20", "A800"}), ("H100", {"H100"})):
            rows = [by for one, by in seen.goodput.items() if one.cluster in clusters]
            line, agrees = _gain(f"Over {system}, {name}", rows, system, published.P90_GAINS[name][system], counted)
            off |= not agrees
            yield from line
        for data in published.DATA_GAINS:
            rows = [by for one, by in seen.goodput.items() if one.data == data]
            line, agrees = _gain(f"Over {system}, {data}", rows, system, published.of_data(data, system), counted)
            off |= not agrees
            yield from line
        if off:
            yield f"  {CAUSES[system]}"


def _gain(
    what: str, rows: list[dict[str, Found]], system: str, printed: published.Printed, counted: Verdicts
) -> tuple[list[str], bool]:
    """The sentence, none without rows, and whether the artifact agrees in it."""
    figures = {
        "the artifact": gains(rows, ARTIFACT, system, 0.9, ECOSERVE),
        "ours": gains(rows, OURS, system, 0.9, ECOSERVE),
    }
    if not any(figures.values()):
        return [], True
    left_out = len([by for by in rows if system in by]) - max(one.count for one in figures.values() if one)
    parts, agrees = [], True
    for name, figure in figures.items():
        if figure is None:
            parts.append(f"{name} has no goodput")
            continue
        verdicts = {which: figure.judge(value, 1.0) for which, value in printed.items()}
        parts.append(f"{name} {figure.bound.value}{figure.value:.2f} ({told(verdicts)})")
        if name == "the artifact":
            counted.update(verdicts.values())
            agrees = set(verdicts.values()) == {Verdict.AGREES}
    count = max(one.count for one in figures.values() if one)
    how_many = f"{count} set-up{'s' if count > 1 else ''}"
    beside = f", {left_out} without a goodput left out" if left_out else ""
    return [f"- {what} ({how_many}{beside}): {', '.join(parts)}; the paper {published.gains_shown(printed)}."], agrees


def told(verdicts: Mapping[str, Verdict]) -> str:
    """One word if it is the same for all."""
    if len(set(verdicts.values())) == 1:
        return next(iter(verdicts.values())).value
    return ", ".join(f"{one.value} with {name}" for name, one in verdicts.items())


def _scaling(seen: Seen, counted: Verdicts) -> Iterator[str]:
    """Growth of the goodput from one replica to as many as the paper has a figure for, and to the most there are."""
    for system in (ARTIFACT, OURS, VLLM):
        one = seen.scaling.get((system, 1))
        counts = sorted(count for name, count in seen.scaling if name == system and count > 1)
        if one is None or not counts:
            continue
        parts = []
        for count in counts:
            grown = gain_of(seen.scaling[system, count], one, 0.9, ECOSERVE)
            shown = "no goodput" if grown is None else f"{grown.bound.value}{grown.value:.2f}"
            parts.append(f"{count} replicas {shown}")
            if grown is not None and count == published.SCALED_TO and system == ARTIFACT:
                verdict = _more_than(grown, count, published.SCALED)
                counted[verdict] += 1
                parts[-1] += f" (the paper's EcoServe {published.SCALED:g}: {verdict.value})"
        yield f"- Growth from one replica, {system}: {', '.join(parts)}."
    if seen.scaling:
        yield f"  {CAUSES['scaling']}"


def _more_than(grown: Figure, count: int, printed: float) -> Verdict:
    """Of a growth the sign is whether it is beyond proportion."""
    return grown.judge(printed, float(count))


def _changes(
    what: str, pairs: Mapping[str, Pair], printed: Mapping[str, published.Printed], counted: Verdicts
) -> Iterator[str]:
    """What each system loses; then why, if one does not agree."""
    off = False
    for system, (before, after) in pairs.items():
        figure = change_of(before, after, 0.99, ECOSERVE)
        also = change_of(before, after, 0.9, ECOSERVE)
        at_p90 = "no goodput" if also is None else f"{also.bound.value}{100 * also.value:+.0f} %"
        if figure is None:
            yield f"- {what}, {system}: no goodput at P99 before the change; at P90 {at_p90}."
            continue
        line = f"- {what}, {system}: {figure.bound.value}{100 * figure.value:+.0f} %"
        paper = printed.get(system, {})
        if paper:
            verdicts = {which: figure.judge(value, 0.0) for which, value in paper.items()}
            counted.update(verdicts.values())
            off |= set(verdicts.values()) != {Verdict.AGREES}
            line += f", the paper {published.changes_shown(paper)}: {told(verdicts)}"
        yield f"{line}; at P90 {at_p90}."
    if off:
        yield f"  {CAUSES['changes']}"

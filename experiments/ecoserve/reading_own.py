"""What the tables say where the paper has a picture or nothing: orders, clocks, who leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from experiments.ecoserve import published
from experiments.ecoserve.comparison import Verdict, gain_of
from experiments.ecoserve.scan import Found
from experiments.ecoserve.seen import Seen
from experiments.ecoserve.systems import ARTIFACT, AUTO, MIXED, OURS, PAPER, PD, SARATHI, VLLM
from experiments.ecoserve.tables import ECOSERVE, USUAL, rate

RING, SCATTERED = "paper's rule, ring", "paper's rule, no order"
OURS_RING, OURS_SCATTERED = "ours, ring", "ours, no order"
FIXED = "fixed turns"
DIP = 0.95
"""Attainment of a window below this is a dip."""
SAME = 0.01
"""Two goodputs nearer than this part are one."""


def ablations(seen: Seen, counted: Counter[Verdict]) -> Iterator[str]:
    """The paper has pictures: a random next replica and fixed turns lie below EcoServe's rule in all of them."""
    for cluster in dict.fromkeys(cluster for cluster, _ in seen.ablations):
        by = {name: found for (where, name), found in seen.ablations.items() if where == cluster}
        for ring, scattered in ((RING, SCATTERED), (OURS_RING, OURS_SCATTERED)):
            if ring in by and scattered in by:
                yield _lower(f"- {cluster}, {scattered} beside {ring}", by[scattered], by[ring], counted)
        if RING in by:
            for name, found in by.items():
                if name.startswith(FIXED):
                    yield _lower(f"- {cluster}, {name} beside {RING}", found, by[RING], counted)


def _lower(what: str, lesser: Found, found: Found, counted: Counter[Verdict]) -> str:
    """Whether the first has the lower goodput, as in the paper."""
    (low, low_open), (high, high_open) = lesser.goodput(0.9, ECOSERVE), found.goodput(0.9, ECOSERVE)
    if (low_open and high_open) or max(low, high) == 0.0 or (low_open and low < high) or (high_open and high < low):
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.SIGN if low < high * (1.0 - SAME) else Verdict.NOT
    counted[verdict] += 1
    shown = {Verdict.SIGN: "lower, as in the paper's picture (same sign)", Verdict.NOT: "not lower, **does not agree**"}
    both = f"{rate(lesser, 0.9, ECOSERVE)} against {rate(found, 0.9, ECOSERVE)} req/s at P90"
    return f"{what}: {both}: {shown.get(verdict, verdict.value)}."


def mitosis(seen: Seen, counted: Counter[Verdict]) -> Iterator[str]:
    """When it splits, and whether attainment dips."""
    found = seen.mitosis
    if found is None:
        return
    splits = [sizes for sizes in found.sizes if len(sizes) > 1]
    if not splits:
        counted[Verdict.NOT] += 1
        yield f"- Mitosis: no split, the paper's is at replica {published.SPLIT_AT}: **does not agree**."
        return
    at = sum(splits[0])
    verdict = Verdict.AGREES if at == published.SPLIT_AT else Verdict.NOT
    dips = Verdict.SIGN if found.lowest < DIP else Verdict.NOT
    counted.update((verdict, dips))
    yield (
        f"- Mitosis splits at replica {at} into {'+'.join(map(str, splits[0]))} (the paper: {published.SPLIT_AT}): "
        f"{verdict.value}. The lowest window has {100 * found.lowest:.1f} % (the paper: about "
        f"{100 * published.SPLIT_DIP:.0f} % near the split): {dips.value}."
    )
    if dips is Verdict.NOT:
        yield "  Here a split moves no request and costs nothing."


def hybrid(seen: Seen) -> Iterator[str]:
    """Whether chunks or phases hold more depends on what a mixed step costs; the paper has no figure for that."""
    costs = list(dict.fromkeys(cost for cost, _ in seen.hybrid))
    plain = {system: found for (cost, system), found in seen.hybrid.items() if cost == "roofline"}
    for cost in costs:
        by = plain | {system: found for (which, system), found in seen.hybrid.items() if which == cost}
        phased = [by[system] for system in (OURS, ARTIFACT) if system in by]
        chunked = [by[system] for system in (SARATHI, MIXED) if system in by]
        if not phased or not chunked:
            continue
        best = {True: _best(phased, ECOSERVE), False: _best(chunked, ECOSERVE)}
        gain = gain_of(best[True], best[False], 0.9, ECOSERVE)
        told = "" if gain is None else f": {gain.bound.value}{gain.value:.2f} times"
        phases, chunks = (f"{one.system}, {rate(one, 0.9, ECOSERVE)}" for one in (best[True], best[False]))
        yield f"- A mixed step by `{cost}`: the best of phases {phases}, of chunks {chunks} req/s at P90{told}."
    if len(costs) > 1:
        yield "  Which of the costs a card has is to be measured on it; none is the truth for all."


def clocks(seen: Seen) -> Iterator[str]:
    """Systems that look good by EcoServe's clock only."""
    for system in (PAPER, ARTIFACT, OURS):
        rows = [(one, by[system]) for one, by in seen.goodput.items() if system in by]
        lost = [
            f"{one.data} on {one.cluster}, {one.model} ({rate(found, 0.9, USUAL)} / {rate(found, 0.9, ECOSERVE)})"
            for one, found in rows
            if found.goodput(0.9, USUAL)[0] < 0.85 * found.goodput(0.9, ECOSERVE)[0]
        ]
        if lost:
            yield (
                f"- {system}: by the usual clock, which counts the switch wait in the time per token, less than 0.85 "
                f"of what it holds by EcoServe's in {len(lost)} of {len(rows)} set-ups: {'; '.join(lost)}."
            )


def leaders(seen: Seen) -> Iterator[str]:
    """Ours beside the best of the others in each set-up."""
    others = (VLLM, SARATHI, PD, PAPER, ARTIFACT)
    for system in (OURS, MIXED, AUTO):
        ahead, level, behind, open_ended = 0, 0, [], 0
        for one, by in seen.goodput.items():
            there = [by[name] for name in others if name in by]
            if system not in by or not there:
                continue
            best = _best(there, USUAL)
            (mine, mine_open), (theirs, theirs_open) = by[system].goodput(0.9, USUAL), best.goodput(0.9, USUAL)
            if mine_open and theirs_open:
                open_ended += 1
            elif mine > theirs * (1.0 + SAME):
                ahead += 1
            elif mine < theirs * (1.0 - SAME):
                behind.append(
                    f"{one.data} on {one.cluster}, {one.model} ({mine:.3g} against {theirs:.3g}, {best.system})"
                )
            else:
                level += 1
        if ahead or level or behind or open_ended:
            told = f" Behind: {'; '.join(behind)}." if behind else ""
            yield (
                f"- {system} beside the best of the published systems in each set-up, P90, usual clock: ahead in "
                f"{ahead}, level in {level}, behind in {len(behind)}, both beyond the scan in {open_ended}.{told}"
            )


def _best(found: list[Found], clock: int) -> Found:
    return max(found, key=lambda one: one.goodput(0.9, clock))

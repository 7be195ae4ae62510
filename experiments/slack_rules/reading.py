"""What the table says, computed from its rows: which rule is the default, and what other choices win and lose."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from experiments.slack_rules.choice import Judged, choose, figure
from experiments.slack_rules.loads import WHOLE
from simulator.grid import Row

POINT = 0.01
KNEE = 0.9
"""The share within both targets about which a load was to lie under the default."""
WIDTH = 118
CAUSE_WHOLE = (
    "Without cuts a prompt is begun only when there is slack for all of it, so that long prompts wait; but where they "
    "are begun they are through sooner, and by the usual clock the switch wait counts in the time per token."
)
Rows = Mapping[str, Sequence[Row]]


def reading(rows: Rows, judged: Sequence[Judged], default: str) -> list[str]:
    """The section `What it says`."""
    if default not in rows:
        return ["Nothing to compare yet."]
    told = [
        _default(rows, judged, default),
        *_others(rows, judged, default),
        *_whole(rows),
        *_loads(rows[default], default),
        "- One rate for each load: a rule that is better at another rate would not show.",
    ]
    return [line for sentence in told for line in textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")]


def _default(rows: Rows, judged: Sequence[Judged], default: str) -> str:
    """Whether it stays, and the best of the others by the criterion's own numbers."""
    chosen = choose(judged, default)
    stays = f"`{default}` stays the default" if chosen == default else f"`{chosen}` is to replace `{default}`"
    best = next((one for one in judged if one.rule != default), None)
    if best is None:
        return f"- {stays}; no other rule was run."
    errors = f"{abs(best.difference) / best.error:.1f} standard errors" if best.error else "no spread"
    by_load = _by_load(rows[best.rule], rows[default])
    where = max(by_load, key=by_load.__getitem__)
    more = _overdraft(rows[best.rule]) / _overdraft(rows[default]) if _overdraft(rows[default]) else None
    held = "" if more is None else f" Streams are held up beyond their slack {more:.1f} times as long."
    return (
        f"- {stays}. Of the others `{best.rule}` is best: {100 * best.difference:+.1f} points, {errors}, most under "
        f"{where} ({100 * by_load[where]:+.1f}).{held}"
    )


def _others(rows: Rows, judged: Sequence[Judged], default: str) -> Iterator[str]:
    """What each of them wins most and loses most against the default."""
    for one in judged:
        if one.rule == default or one.rule.endswith(WHOLE):
            continue
        by_load = _by_load(rows[one.rule], rows[default])
        won, lost = max(by_load, key=by_load.__getitem__), min(by_load, key=by_load.__getitem__)
        parts = [
            f"{word} {100 * abs(by_load[load]):.0f} points under {load}"
            for word, load, counts in (("wins", won, by_load[won] > POINT), ("loses", lost, by_load[lost] < -POINT))
            if counts
        ]
        yield f"- `{one.rule}` beside `{default}`: {' and '.join(parts) or 'within one point under every load'}."


def _whole(rows: Rows) -> Iterator[str]:
    """Each rule without cuts beside itself with them."""
    told = False
    for whole, same in rows.items():
        rule = whole.removesuffix(WHOLE)
        if not whole.endswith(WHOLE) or rule not in rows:
            continue
        by_load = _by_load(same, rows[rule])
        better = [load for load, difference in by_load.items() if difference > POINT]
        worst = min(by_load, key=by_load.__getitem__)
        mean = sum(by_load.values()) / len(by_load)
        where = f"better under {'; '.join(better)}" if better else "better under none"
        told = True
        yield f"- `{rule}` without cuts: {100 * mean:+.0f} points, {100 * by_load[worst]:+.0f} under {worst}, {where}."
    if told:
        yield f"  {CAUSE_WHOLE}"


def _loads(same: Sequence[Row], default: str) -> Iterator[str]:
    """Loads that turned out to be further beyond the knee than was meant."""
    beyond = [f"{load} ({100 * share:.0f} %)" for load, share in _shares(same).items() if share < KNEE - 0.1]
    if beyond:
        yield f"- Beyond the knee of `{default}` rather than at it lie {'; '.join(beyond)}."


def _by_load(rows: Sequence[Row], base: Sequence[Row]) -> dict[str, float]:
    """The difference of the figure, in shares, under each load that both have."""
    mine, theirs = _shares(rows), _shares(base)
    return {load: mine[load] - theirs[load] for load in theirs if load in mine}


def _shares(rows: Sequence[Row]) -> dict[str, float]:
    loads = dict.fromkeys(str(row["load"]) for row in rows)
    return {load: _mean([figure(row) for row in rows if row["load"] == load]) for load in loads}


def _overdraft(rows: Sequence[Row]) -> float:
    return sum(row.number("overdraft_s") for row in rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

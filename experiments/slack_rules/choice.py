"""Which rule becomes the default, by a criterion that was stated before the runs.

The figure of a run is the mean of its attained shares by the usual clock and by EcoServe's. A rule's score is the mean
over all runs: three data sets, two levels of targets, rates, seeds. Another rule replaces the present default only if
its score is higher by more than twice the standard error of the paired differences (same load, rate, seed) and it is
not more than one point lower under any load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from simulator.grid import Row

WORST = -0.01
Key = tuple[str, float, float]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A rule beside the default: its score, the mean paired difference with its standard error, the worst load."""

    rule: str
    score: float
    difference: float
    error: float
    worst: float

    @property
    def better(self) -> bool:
        """By the criterion of the module."""
        return self.difference > 2.0 * self.error and self.difference > 0.0 and self.worst >= WORST


def figure(row: Row) -> float:
    """The mean of both clocks' attained shares."""
    return (row.number("usual.attained") + row.number("ecoserve.attained")) / 2


def judge(rows: Mapping[str, Sequence[Row]], default: str) -> list[Judged]:
    """Every rule that has all the default's runs (which must be there), best score first."""
    base = _by_run(rows[default])
    found = []
    for rule, same in rows.items():
        values = _by_run(same)
        if values.keys() != base.keys():
            continue
        differences = {key: value - base[key] for key, value in values.items()}
        count, mean = len(differences), sum(differences.values()) / len(differences)
        spread = math.sqrt(sum((one - mean) ** 2 for one in differences.values()) / max(1, count - 1))
        loads = {key[0] for key in differences}
        worst = min(_mean([one for key, one in differences.items() if key[0] == load]) for load in loads)
        score = sum(values.values()) / count
        found.append(Judged(rule=rule, score=score, difference=mean, error=spread / math.sqrt(count), worst=worst))
    return sorted(found, key=lambda one: -one.score)


def choose(judged: Sequence[Judged], default: str) -> str:
    """The best that is better than the default by the criterion, or the default."""
    return next((one.rule for one in judged if one.better), default)


def _by_run(rows: Sequence[Row]) -> dict[Key, float]:
    return {(str(row["load"]), row.number("rate"), row.number("seed")): figure(row) for row in rows}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

"""Live and simulated quantiles side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from experiments.bandwidth_sweep.seen import Seen
from experiments.calibration.live import LivePoint, Record
from experiments.calibration.simulated import Around, scenario, simulated
from experiments.macro_live.figures import quantile
from scheduling.step_shape import StepShape
from simulator.cost_file import CostFile

SHARES = (0.5, 0.9, 0.99)
FIGURES: dict[str, Callable[[Seen], float | None]] = {
    "TTFT": lambda one: one.ttft_s,
    "TPOT": lambda one: one.tpot_s,
}
GOAL = 0.1


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One quantile of one figure, in seconds, live and simulated (mean over the seeds)."""

    layout: str
    per_s: float
    figure: str
    share: float
    live_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """Relative, positive where the simulator is too slow."""
        return self.simulated_s / self.live_s - 1.0


def around(record: Record, cost: CostFile, point: LivePoint, prompt: int, output: int) -> Around:
    """What single requests took beyond their steps: messages before the first token, and turns between later ones.

    Of the layouts that hand nothing over: a hand-off is simulated message by message.
    """
    whole = [one for one in record.idle if one.layout != "1p1d"] or list(record.idle)
    first, later = StepShape(), StepShape()
    first.add_prefill(0, prompt)
    later.add_decodes(1, prompt + output // 2)
    beyond_s = min(one.ttft_s for one in whole) - cost.cost.step_s(first)
    turn_s = min(one.tpot_s for one in whole) - cost.cost.step_s(later)
    return Around(
        message_s=max(0.0002, beyond_s / 2),
        turn_s=max(0.0, turn_s),
        link_bytes_per_s=point.link_bytes_per_s,
        beside=min(1.0, point.beside_cores / max(0.01, point.own_cores - point.beside_cores)),
    )


def cells(
    record: Record, cost: CostFile, seeds: int, idle_shape: tuple[int, int], folder: Path, say: Callable[[str], None]
) -> list[Cell]:
    """Every point simulated, `seeds` times with other spreads of the steps."""
    found = []
    for point in record.points:
        one = around(record, cost, point, *idle_shape)
        runs = []
        for seed in range(seeds):
            made = scenario(point.layout, point.requests, cost, one, record.slo, seed, folder / "trace.csv")
            runs.append(simulated(made, len(point.requests))[0])
        mine = point_cells(point, runs)
        found += mine
        say(line(mine))
    return found


def point_cells(point: LivePoint, runs: Sequence[Sequence[Seen]]) -> list[Cell]:
    """The quantiles of one point; requests that failed on either side are left out there."""
    found = []
    for figure, of in FIGURES.items():
        for share in SHARES:
            live_s = quantile([of(one) for one in point.seen if one.error is None], share)
            said = [quantile([of(one) for one in run if one.error is None], share) for run in runs]
            found.append(
                Cell(
                    layout=point.layout,
                    per_s=point.per_s,
                    figure=figure,
                    share=share,
                    live_s=live_s,
                    simulated_s=fmean(said),
                )
            )
    return found


def line(of: Sequence[Cell]) -> str:
    """One point in one line, milliseconds."""
    words = [
        f"{one.figure} P{100 * one.share:.0f} {1e3 * one.live_s:.0f} / {1e3 * one.simulated_s:.0f} ({one.error:+.0%})"
        for one in of
    ]
    return f"{of[0].layout:11s} {of[0].per_s:g}/s  live / simulated ms: " + ", ".join(words)


def within(of: Sequence[Cell], goal: float = GOAL) -> tuple[int, int]:
    """How many are within the goal, of how many."""
    known = [one for one in of if math.isfinite(one.error)]
    return sum(abs(one.error) <= goal for one in known), len(known)

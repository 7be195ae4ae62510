"""Where handing KV over begins to pay, as measured and as predicted, and whether `auto` finds it. Pure.

The score of a mode is its attainment on EcoServe's clock, the one that plans are made by. The crossover is the rate
from which on the forced hand-off attains at least what the best layout without one does; between two rates of the sweep
it is interpolated on the logarithm of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from contracts.kv import KVLayout
from contracts.phase import Layout
from contracts.request import Slo
from contracts.views import StepCost
from experiments.bandwidth_sweep.options import AUTO, FORCED
from experiments.bandwidth_sweep.summary import Summary
from experiments.bandwidth_sweep.workload import Arrival
from experiments.network.lan import FRAME_SHARE
from scheduling.link_math import exposed_transfer_s, queued_transfer_s
from scheduling.step_cost import predict_prefill_s

TIE = 0.02
"""Attainments closer than this are equal: one request of fifty."""
ALLOWED = 0.05
SWITCHED = 0.5
BEYOND = 1000.0
STEPS = 60


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Rates in Mbit/s, None: not within the sweep. `worst_auto` is the lowest ratio of `auto`'s score to that of the
    best forced layout, at `worst_at`; `steps_off` how many steps of the sweep lie between `switch` and `crossover`."""

    crossover: float | None
    predicted: float | None
    switch: float | None
    worst_auto: float | None
    worst_at: float | None
    steps_off: float | None

    @property
    def auto_holds(self) -> bool | None:
        """Whether `auto` is never worse than the best forced layout by more than 5 %."""
        return None if self.worst_auto is None else self.worst_auto >= 1.0 - ALLOWED

    @property
    def switch_holds(self) -> bool | None:
        """Whether `auto` switches within one step of the crossover."""
        return None if self.steps_off is None else self.steps_off <= 1.0


def judge(summaries: Sequence[Summary], predicted: float | None) -> Verdict:
    """What the whole sweep says."""
    rates = sorted({summary.mbit_per_s for summary in summaries})
    scores = {mode: _by_rate(summaries, mode) for mode in (*FORCED, AUTO)}
    pools, auto = scores[Layout.DISAGGREGATED.value], scores[AUTO]
    whole = [scores[Layout.COLOCATED.value], scores[Layout.PHASED.value]]
    common = [rate for rate in rates if rate in pools and any(rate in layout for layout in whole)]
    gains = [pools[rate] + TIE - max(layout[rate] for layout in whole if rate in layout) for rate in common]
    crossover = crossing(common, gains)
    handed = {summary.mbit_per_s: summary.handed_over for summary in summaries if summary.mode == AUTO}
    switch = crossing(sorted(handed), [handed[rate] - SWITCHED for rate in sorted(handed)])
    ratios = []
    for rate in auto:
        forced = [scores[mode][rate] for mode in FORCED if rate in scores[mode]]
        if forced and max(forced) > 0.0:
            ratios.append((auto[rate] / max(forced), rate))
    worst = min(ratios, default=(None, None))
    steps_off = None
    if crossover is not None and switch is not None:
        steps_off = abs(position(rates, crossover) - position(rates, switch))
    return Verdict(
        crossover=crossover,
        predicted=predicted,
        switch=switch,
        worst_auto=worst[0],
        worst_at=worst[1],
        steps_off=steps_off,
    )


def crossing(rates: Sequence[float], gains: Sequence[float]) -> float | None:
    """The rate from which on `gains` stay at or above zero. None: from the first one on, or never."""
    below = [index for index, gain in enumerate(gains) if gain < 0.0]
    if not below or below[-1] == len(rates) - 1:
        return None
    last = below[-1]
    share = -gains[last] / (gains[last + 1] - gains[last])
    return rates[last] * math.pow(rates[last + 1] / rates[last], share)


def position(rates: Sequence[float], rate: float) -> float:
    """Where `rate` lies in the sweep, counted in its steps."""
    for index in range(len(rates) - 1):
        if rate <= rates[index + 1] or index == len(rates) - 2:
            return index + math.log(rate / rates[index]) / math.log(rates[index + 1] / rates[index])
    return 0.0


def level_without_handoff(summaries: Sequence[Summary]) -> float | None:
    """What the best layout without a hand-off attains, over all rates: the link is nothing to it."""
    means = []
    for mode in (Layout.COLOCATED.value, Layout.PHASED.value):
        scores = list(_by_rate(summaries, mode).values())
        means += [sum(scores) / len(scores)] if scores else []
    return max(means, default=None)


def predicted_attainment(
    asked: Sequence[Arrival],
    cost: StepCost,
    layout: KVLayout,
    slo: Slo,
    *,
    givers: int,
    mbit_per_s: float,
    chunk: int,
) -> float:
    """The share of requests whose hand-off is over within the TTFT target, at a link of `mbit_per_s` on the wire.

    Each of `givers` prefills its prompts one after the other, on a link of its own that sends them in that order; a
    transfer is exposed as `scheduling.link_math` says. That decode keeps the TPOT target is taken for granted.
    """
    bytes_per_s = mbit_per_s * FRAME_SHARE * 1e6 / 8
    computed, sent = [0.0] * givers, [0.0] * givers
    met = 0
    for one in asked:
        giver = min(range(givers), key=lambda index: computed[index])
        began = max(one.at_s, computed[giver])
        prefill_s = predict_prefill_s(cost, past=0, tokens=one.prompt_tokens, chunk=chunk)
        num_bytes = layout.blocks_for(one.prompt_tokens) * layout.block_size * layout.bytes_per_token
        ahead = max(0.0, sent[giver] - began) * bytes_per_s
        exposed_s = max(
            exposed_transfer_s(num_bytes, layout.num_layers, prefill_s, bytes_per_s),
            queued_transfer_s(num_bytes, ahead, prefill_s, bytes_per_s),
        )
        computed[giver] = began + prefill_s
        sent[giver] = computed[giver] + exposed_s
        met += sent[giver] - one.at_s <= slo.ttft_s
    return met / len(asked)


def predicted_crossover(
    asked: Sequence[Arrival],
    cost: StepCost,
    layout: KVLayout,
    slo: Slo,
    *,
    givers: int,
    level: float,
    rates: Sequence[float],
    chunk: int = 512,
) -> float | None:
    """The lowest rate, in Mbit/s, at which hand-offs are predicted to attain `level` (attainment grows with the rate:
    bisected, far beyond the `rates` of the sweep). None if none does, or every one."""
    low, high = rates[0] / BEYOND, rates[-1] * BEYOND

    def attains(rate: float) -> bool:
        score = predicted_attainment(asked, cost, layout, slo, givers=givers, mbit_per_s=rate, chunk=chunk)
        return score + TIE >= level

    if attains(low) or not attains(high):
        return None
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if attains(middle) else (middle, high)
    return high


def _by_rate(summaries: Sequence[Summary], mode: str) -> dict[float, float]:
    return {summary.mbit_per_s: summary.attained for summary in summaries if summary.mode == mode}

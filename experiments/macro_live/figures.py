"""From what single requests saw to the figures of a point, and from repeats to median and range."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from contracts.request import Slo
from experiments.bandwidth_sweep.seen import Seen

ON_TIME_SHARE = 0.9


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its arrival, its key, the longest gap its client saw, and what the router measured."""

    at_s: float
    key: str
    max_gap_s: float
    seen: Seen


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One point. Shares of all requests (a failed one is late), times in seconds of those answered (NaN: none).

    `on_time` by the clock of the first token, `on_time_decode` by EcoServe's (TTFT ends with the first decode step,
    TPOT leaves the switch wait out). `jain` is over the keys' shares on time; `recovery_s` the longest time for which
    requests that arrived met no TTFT target."""

    on_time: float
    on_time_decode: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ready_p50_s: float
    ready_p90_s: float
    ready_p99_s: float
    switch_p90_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    tpot_p99_s: float
    decode_tpot_p50_s: float
    decode_tpot_p90_s: float
    decode_tpot_p99_s: float
    max_gap_s: float
    max_wait_s: float
    jain: float
    recovery_s: float
    failed: float


def figures(served: Sequence[Served], slo: Slo, span_s: float) -> Figures:
    """The figures of one point whose arrivals took `span_s`."""
    seen = [one.seen for one in served]
    well = [one for one in seen if one.error is None]
    by_first = [_met(one.ttft_s, one.tpot_s, slo) and one.error is None for one in seen]
    by_decode = [_met(one.ready_s, one.decode_tpot_s, slo) and one.error is None for one in seen]
    ttft, ready = [one.ttft_s for one in well], [one.ready_s for one in well]
    tpot, decode_tpot = [one.tpot_s for one in well], [one.decode_tpot_s for one in well]
    keys = sorted({one.key for one in served})
    shares = [_share(met for met, one in zip(by_first, served, strict=True) if one.key == key) for key in keys]
    return Figures(
        on_time=_share(by_first),
        on_time_decode=_share(by_decode),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p90_s=quantile(ttft, 0.9),
        ttft_p99_s=quantile(ttft, 0.99),
        ready_p50_s=quantile(ready, 0.5),
        ready_p90_s=quantile(ready, 0.9),
        ready_p99_s=quantile(ready, 0.99),
        switch_p90_s=quantile([one.switch_wait_s for one in well], 0.9),
        tpot_p50_s=quantile(tpot, 0.5),
        tpot_p90_s=quantile(tpot, 0.9),
        tpot_p99_s=quantile(tpot, 0.99),
        decode_tpot_p50_s=quantile(decode_tpot, 0.5),
        decode_tpot_p90_s=quantile(decode_tpot, 0.9),
        decode_tpot_p99_s=quantile(decode_tpot, 0.99),
        max_gap_s=max((one.max_gap_s for one in served), default=math.nan),
        max_wait_s=quantile(ttft, 1.0),
        jain=jain(shares),
        recovery_s=recovery_s(served, slo.ttft_s, span_s),
        failed=_share(one.error is not None for one in seen),
    )


def quantile(values: Iterable[float | None], share: float) -> float:
    """The smallest value that `share` of the known ones do not exceed; NaN without any."""
    known = sorted(value for value in values if value is not None)
    return known[max(0, math.ceil(share * len(known)) - 1)] if known else math.nan


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything (Jain, Chiu and Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else math.nan


def recovery_s(served: Sequence[Served], ttft_s: float, span_s: float) -> float:
    """The longest time from an arrival that missed the TTFT target to the next arrival that met it, or to the end."""
    longest, since = 0.0, None
    for one in sorted(served, key=lambda one: one.at_s):
        met = one.seen.error is None and one.seen.ttft_s is not None and one.seen.ttft_s <= ttft_s
        if not met and since is None:
            since = one.at_s
        if met and since is not None:
            longest, since = max(longest, one.at_s - since), None
    return longest if since is None else max(longest, span_s - since)


def middle(repeats: Sequence[Figures], name: str) -> tuple[float, float, float]:
    """Median, least and most of one figure over the repeats in which it is known (NaN: in none)."""
    known = [value for one in repeats if not math.isnan(value := getattr(one, name))]
    return (statistics.median(known), min(known), max(known)) if known else (math.nan, math.nan, math.nan)


def goodput(by_rate: dict[float, Sequence[Figures]], name: str) -> float:
    """The highest rate up to which the median share on time is 90 %, at that rate and all lower ones; 0 for none."""
    best = 0.0
    for per_s in sorted(by_rate):
        if not middle(by_rate[per_s], name)[0] >= ON_TIME_SHARE:
            break
        best = per_s
    return best


def _met(ttft_s: float | None, tpot_s: float | None, slo: Slo) -> bool:
    return ttft_s is not None and ttft_s <= slo.ttft_s and (tpot_s is None or tpot_s <= slo.tpot_s)


def _share(met: Iterable[bool]) -> float:
    known = list(met)
    return sum(known) / len(known) if known else math.nan

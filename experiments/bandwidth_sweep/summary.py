"""One point in figures: percentiles on both clocks, attainment, bytes, what was hidden. Pure.

A request that was not answered has missed its targets, and counts as infinitely late in every percentile: a layout
must not look fast because it drops what is slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from contracts.request import Slo
from experiments.bandwidth_sweep.options import BITS
from experiments.bandwidth_sweep.seen import Point, Seen

LEVELS = (0.5, 0.9, 0.99)


class Percentiles(msgspec.Struct, frozen=True):
    """In seconds; infinite where requests that were not answered reach so far."""

    p50: float
    p90: float
    p99: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. End to end: `ttft` to the first token, `tpot` from there, switch wait included. EcoServe's
    clock: `ready` (TTFT and switch wait), `decode_tpot` from there. `attained*` are the shares of all requests that met
    both targets on that clock, `goodput_per_s` those on EcoServe's by second of the arrivals. `hidden_share` is the
    part of all transfers that cost no time, `planned_hidden_share` what the router had planned with
    (`scheduling.link_math`); means of the exposed part beside them, all None without a hand-off."""

    mode: str
    mbit_per_s: float
    requests: int
    answered: int
    ttft: Percentiles
    switch_wait: Percentiles
    tpot: Percentiles
    ready: Percentiles
    decode_tpot: Percentiles
    attained: float
    attained_end_to_end: float
    goodput_per_s: float
    handed_over: float
    fallbacks: int
    kv_bytes: int
    wire_bytes: int
    link_mbit_per_s: float | None
    hidden_share: float | None
    planned_hidden_share: float | None
    exposed_s: float | None
    planned_exposed_s: float | None


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """Nearest rank; None is infinite. Raises `ValueError` without values."""
    ordered = sorted(math.inf if value is None else value for value in values)
    if not ordered:
        raise ValueError("no values")
    return Percentiles(*(ordered[max(0, math.ceil(level * len(ordered)) - 1)] for level in LEVELS))


def summarize(point: Point, slo: Slo) -> Summary:
    """The figures of one point."""
    seen = point.seen

    def of(name: str) -> Percentiles:
        return percentiles(None if one.error else getattr(one, name) for one in seen)

    attained = _share(seen, lambda one: _met(one, one.ready_s, one.decode_tpot_s, slo))
    transfers = [one for one in seen if one.transfer_s is not None and one.planned_transfer_s is not None]
    return Summary(
        mode=point.mode,
        mbit_per_s=point.mbit_per_s,
        requests=len(seen),
        answered=sum(one.error is None for one in seen),
        ttft=of("ttft_s"),
        switch_wait=of("switch_wait_s"),
        tpot=of("tpot_s"),
        ready=of("ready_s"),
        decode_tpot=of("decode_tpot_s"),
        attained=attained,
        attained_end_to_end=_share(seen, lambda one: _met(one, one.ttft_s, one.tpot_s, slo)),
        goodput_per_s=attained * len(seen) / point.span_s,
        handed_over=_share(seen, lambda one: one.layout == "disaggregated"),
        fallbacks=sum(one.fallback for one in seen),
        kv_bytes=sum(one.kv_bytes for one in seen),
        wire_bytes=point.wire_bytes,
        link_mbit_per_s=None if point.link_bytes_per_s is None else point.link_bytes_per_s * BITS,
        hidden_share=_hidden([(one.exposed_s or 0.0, one.transfer_s or 0.0) for one in transfers]),
        planned_hidden_share=_hidden(
            [(one.planned_exposed_s or 0.0, one.planned_transfer_s or 0.0) for one in transfers]
        ),
        exposed_s=_mean([one.exposed_s or 0.0 for one in transfers]),
        planned_exposed_s=_mean([one.planned_exposed_s or 0.0 for one in transfers]),
    )


def _met(one: Seen, first_s: float | None, each_s: float | None, slo: Slo) -> bool:
    if one.error is not None or first_s is None or each_s is None:
        return False
    return first_s <= slo.ttft_s and each_s <= slo.tpot_s


def _share(seen: Sequence[Seen], holds: Callable[[Seen], bool]) -> float:
    return sum(map(holds, seen)) / len(seen)


def _hidden(transfers: Sequence[tuple[float, float]]) -> float | None:
    """Of all seconds of transfer those that were not exposed; waiting for other transfers is no transfer."""
    total = sum(transfer_s for _, transfer_s in transfers)
    if total <= 0.0:
        return None
    return 1.0 - sum(min(exposed_s, transfer_s) for exposed_s, transfer_s in transfers) / total


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

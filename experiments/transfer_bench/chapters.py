"""What is measured on which link: whole hand-offs per transport, and the estimate of a link."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.network.lan import FRAME_SHARE, Lan
from experiments.transfer_bench.bench import Bench, Place, Running
from experiments.transfer_bench.end import Shape
from experiments.transfer_bench.figures import Followed
from experiments.transfer_bench.pair import EndError, Kind
from experiments.transfer_bench.report import followed_cells, percent
from scheduling.config import ReplicaCoreConfig
from scheduling.link_estimate import LinkEstimate

LARGE_MODEL = (32, 64 << 10)
"""Layers, and bytes of one block in one layer: an 8B model with 8 KV heads of 128 in 16-bit."""
SMALL_MODEL = (24, 8 << 10)
"""A 0.5B model with 2 KV heads of 64 in 16-bit."""
MIB = 1 << 20
POOL_MIB = 1024
SLOW_POOL_MIB = 256
START_S = 8.0
"""About what starting and connecting a pair takes."""
FAST = 800e6
"""Bytes per second that are reckoned with where no link is shaped."""
TOLERANCE = 0.10
UCX_TCP = {"UCX_TLS": "tcp", "UCX_RNDV_SCHEME": "put_zcopy", "UCX_WARN_UNUSED_ENV_VARS": "n"}

SOCKET = Kind("socket", "socket_end")
MEMORY = Kind("copy from shared memory", "memory_end")


def service(transport: str, fabric: str = "tcp", name: str = "") -> Kind:
    """Our own service over one transport."""
    return Kind(name or transport, "service_end", {"transport": transport, "fabric": fabric})


def nixl_lists(operation: str) -> Kind:
    """NIXL's API by itself."""
    return Kind(f"NIXL lists, {operation}", "nixl_end", {"operation": operation}, env=UCX_TCP)


def mooncake(python: Path) -> Kind:
    """Mooncake's engine by itself, in an environment of its own."""
    return Kind("Mooncake", "mooncake_end", python=str(python))


@dataclass(frozen=True, slots=True)
class Plan:
    """A kind on a link: sizes in MiB with repetitions, and whether scattered small blocks are measured, too."""

    kind: Kind
    sizes: Sequence[tuple[int, int]]
    scattered: bool = False


def shape_of(model: tuple[int, int], pool_mib: int) -> Shape:
    """A pool of about this size."""
    num_layers, block_bytes = model
    return Shape(num_layers, pool_mib * MIB // (num_layers * block_bytes), block_bytes)


def hand_offs(bench: Bench, place: Place, plans: Sequence[Plan], pool_mib: int) -> None:
    """All plans of one link, each in turns with the plain socket."""
    shape = shape_of(LARGE_MODEL, pool_mib)
    if not plans or not bench.fits(2 * START_S, place.name):
        return
    with bench.pair(SOCKET, shape, place) as yardstick:
        for plan in plans:
            sizes = [
                size
                for size in plan.sizes
                if bench.fits(cost_s(place, [size]), f"{place.name}, {plan.kind.name}, {size[0]} MiB")
            ]
            if not sizes:
                continue
            with bench.pair(plan.kind, shape, place) as running:
                if running is not None:
                    _sizes(bench, place, running, yardstick, sizes)
        if yardstick is not None:
            bench.report.note(
                f"{place.name}: a socket pair keeps {yardstick.pair.idle_cores(0.3):.3f} cores busy when idle"
            )
    for plan in plans:
        if plan.scattered:
            scattered(bench, place, plan.kind, pool_mib)


def _sizes(
    bench: Bench, place: Place, running: Running, yardstick: Running | None, sizes: Sequence[tuple[int, int]]
) -> None:
    kind, shape = running.pair.kind, running.pair.shape
    idle = running.pair.idle_cores(0.3)
    bench.report.note(f"{place.name}, {kind.name}: {idle:.3f} cores busy when idle; {running.pair.about}")
    for mib, repeats in sizes:
        count = mib * MIB // shape.bytes_of(1)
        try:
            bench.measure((place, f"{mib} MiB"), running, yardstick, count, repeats)
        except EndError as error:
            bench.report.note(f"{place.name}, {kind.name}, {mib} MiB: {error}")
            return


def scattered(bench: Bench, place: Place, kind: Kind, pool_mib: int) -> None:
    """Blocks of a small model in shuffled order: the smallest pieces that occur."""
    shape = shape_of(SMALL_MODEL, pool_mib)
    what = f"{place.name}, {kind.name}, scattered blocks"
    if not bench.fits(2 * START_S + cost_s(place, [(64, 3)]), what):
        return
    with (
        bench.pair(replace(SOCKET, name="socket scattered"), shape, place) as yardstick,
        bench.pair(kind, shape, place) as running,
    ):
        if running is None or yardstick is None:
            return
        for one in (running, yardstick):
            one.scatter(True)
        try:
            count = 64 * MIB // shape.bytes_of(1)
            bench.measure((place, "64 MiB of 8 KiB pieces"), running, yardstick, count, 3)
        except EndError as error:
            bench.report.note(f"{what}: {error}")


def cost_s(place: Place, sizes: Sequence[tuple[int, int]]) -> float:
    """About how long a plan takes, the yardstick's share included."""
    rate = min(place.bytes_per_s or FAST, FAST)
    return START_S + 2.2 * sum(mib * MIB * repeats for mib, repeats in sizes) / rate


def estimates(bench: Bench, lan: Lan, names: tuple[str, str], rates_mbit: tuple[float, float]) -> None:
    """The estimate of a link after the probe at join, and after its rate has changed, there and back."""
    shape = shape_of(LARGE_MODEL, SLOW_POOL_MIB)
    first, second = (rate * 1e6 / 8 for rate in rates_mbit)
    lan.shape(names[0], first)
    place = Place(f"{rates_mbit[0]:g} Mbit/s", (lan.hosts[names[0]], lan.hosts[names[1]]), first * FRAME_SHARE)
    if not bench.fits(START_S + 3 * 2.2 * 16 * MIB / min(first, second), f"estimate at {place.name}"):
        return
    head = ("link", "after", "measured by", "errors", f"within {TOLERANCE:.0%} after")
    core = ReplicaCoreConfig()
    with bench.pair(service("tcp", name=f"tcp estimate {rates_mbit[0]:g}"), shape, place) as running:
        if running is None:
            return
        found = running.pair.about["bytes_per_s"]
        error = found / (first * FRAME_SHARE) - 1.0
        line = [place.name, "join", "probe", percent(error), "1" if abs(error) <= TOLERANCE else "never"]
        bench.report.line("Estimate of the link", head, line, {"rate": first, "found": found})
        followed = Followed(LinkEstimate(core.link_half_life_s, core.link_sample_min_bytes), second * FRAME_SHARE)
        followed.estimate.add(int(found), 1.0, time.monotonic())
        lan.shape(names[0], second)
        try:
            for _ in range(3):
                sample = running.hand_over(16 * MIB // shape.bytes_of(1))
                followed.add(sample.giver["measured"], time.monotonic())
        except EndError as problem:
            bench.report.note(f"estimate after {rates_mbit[0]:g} -> {rates_mbit[1]:g} Mbit/s: {problem}")
        change = f"{rates_mbit[0]:g} -> {rates_mbit[1]:g} Mbit/s"
        cells = [change, "change", "hand-offs of 16 MiB", *followed_cells(followed, TOLERANCE)]
        bench.report.line("Estimate of the link", head, cells, {"rate": second, "errors": followed.errors})

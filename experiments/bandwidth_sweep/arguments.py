"""The command line of the sweep. Every default gives a sweep that two cores finish in minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from contracts.request import Slo
from experiments.bandwidth_sweep.options import MODES, EngineName, Options, Workload, log_spaced


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """What suits an engine: of the prefill capacity of one replica, the workload takes about two thirds."""

    rates: tuple[float, float, int]
    workload: Workload
    slo: Slo


PRESETS: dict[EngineName, Preset] = {
    "fake": Preset(
        rates=(10.0, 1000.0, 8),
        workload=Workload(requests=45, per_s=5.0, prompt_tokens=(128, 512), output_tokens=(24, 64)),
        slo=Slo(ttft_s=0.6, tpot_s=0.014),
    ),
    "smollm2": Preset(
        rates=(10.0, 1000.0, 4),
        workload=Workload(requests=10, per_s=1.0, prompt_tokens=(64, 192), output_tokens=(12, 24)),
        slo=Slo(ttft_s=1.5, tpot_s=0.06),
    ),
}


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """All options."""
    found = argparse.ArgumentParser(prog=prog, description=description)
    found.add_argument("--engine", choices=tuple(PRESETS), default="fake",
                       help="fake: exact step times and KV of real size, so that two cores are no limit (default);"
                       " smollm2: SmolLM2-135M computed here")  # fmt: skip
    found.add_argument("--replicas", type=int, default=2, help="in every layout, half prefill in the pools (default 2)")
    presets = [f"{name} {':'.join(f'{one:g}' for one in preset.rates)}" for name, preset in PRESETS.items()]
    found.add_argument("--rates", type=_numbers, metavar="LOW:HIGH:COUNT",
                       help=f"of each link, Mbit/s, spaced by a factor (default {', '.join(presets)})")  # fmt: skip
    found.add_argument("--layouts", default=",".join(MODES), help=f"which to measure (default {','.join(MODES)})")
    found.add_argument("--requests", type=int, help="of each point")
    found.add_argument("--per-s", type=float, help="mean arrivals a second")
    found.add_argument("--prompt-tokens", type=_span, metavar="LOW:HIGH")
    found.add_argument("--output-tokens", type=_span, metavar="LOW:HIGH")
    found.add_argument("--seed", type=int)
    found.add_argument("--slo-ttft-s", type=float, help="TTFT target, switch wait included")
    found.add_argument("--slo-tpot-s", type=float, help="TPOT target")
    found.add_argument(
        "--grace-s", type=float, default=5.0, help="requests are given up so long after the last arrival"
    )
    found.add_argument("--out", type=Path, default=Path("bandwidth_sweep"), metavar="FOLDER",
                       help="results go there; points that are there already are not measured again "
                            "(default %(default)s)")  # fmt: skip
    return found


def options_of(words: argparse.Namespace) -> Options:
    """The sweep that was asked for. Raises `ConfigError` naming what is wrong."""
    preset = PRESETS[words.engine]
    low, high, count = words.rates or preset.rates
    given = {
        name: value
        for name in Workload.__struct_fields__
        if (value := getattr(words, name)) is not None
    }  # fmt: skip
    return Options(
        engine=words.engine,
        mbit_per_s=log_spaced(low, high, int(count)),
        modes=tuple(name.strip() for name in words.layouts.split(",")),
        workload=msgspec.structs.replace(preset.workload, **given),
        slo=Slo(
            ttft_s=preset.slo.ttft_s if words.slo_ttft_s is None else words.slo_ttft_s,
            tpot_s=preset.slo.tpot_s if words.slo_tpot_s is None else words.slo_tpot_s,
        ),
        replicas=words.replicas,
        grace_s=words.grace_s,
    )


def _numbers(text: str) -> tuple[float, float, int]:
    try:
        low, high, count = text.split(":")
        return float(low), float(high), int(count)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form LOW:HIGH:COUNT") from None


def _span(text: str) -> tuple[int, int]:
    try:
        low, high = text.split(":")
        return int(low), int(high)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form LOW:HIGH") from None

"""What the paper printed (EcoServe, OSDI'26; sections as there), to stand beside ours."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.ecoserve.systems import ARTIFACT, PD, SARATHI, VLLM

Printed = Mapping[str, float]
"""A figure by the system that it is of; where one line of ours stands for two of the paper's, both."""
_FUDG = ("DistServe", "MoonCake")

P90_GAINS: Mapping[str, Mapping[str, Printed]] = {
    "L20 and A800": {VLLM: {"vLLM": 2.01}, SARATHI: {"Sarathi": 1.87}, PD: dict(zip(_FUDG, (3.43, 3.41), strict=True))},
    "H100": {VLLM: {"vLLM": 1.34}, SARATHI: {"Sarathi": 1.25}, PD: dict(zip(_FUDG, (1.75, 1.24), strict=True))},
}
"""Mean of EcoServe's goodput over the system's, in the cases that could be run (§4.2). On H100 MoonCake wins on
CodeLlama2-34B."""
DATA_GAINS: Mapping[str, tuple[float, float]] = {
    "Alpaca": (1.19, 1.70),
    "ShareGPT": (1.26, 4.00),
    "LongBench": (2.72, 2.53),
}
"""Over systems without and with disaggregation, at P90."""
TIGHTENING: Mapping[str, Printed] = {
    ARTIFACT: {"EcoServe": -0.571},
    VLLM: {"vLLM": -0.600},
    SARATHI: {"Sarathi": -0.729},
    PD: dict(zip(_FUDG, (-0.269, -0.239), strict=True)),
}
"""CodeLlama2-34B on A800, ShareGPT, P99, targets (5 s, 100 ms) to (1 s, 50 ms): the change of goodput."""
TIGHTENED = {ARTIFACT: "42 to 18", VLLM: "16 to 6.4", SARATHI: "28 to 7.6"}
"""The goodputs in req/s, where the paper has them."""
BURSTS: Mapping[str, Printed] = {
    ARTIFACT: {"EcoServe": -0.173},
    VLLM: {"vLLM": -0.195},
    SARATHI: {"Sarathi": -0.357},
    PD: dict(zip(_FUDG, (-0.126, -0.171), strict=True)),
}
"""P99, Gamma arrivals, CV 1.2 to 2.0: the change of goodput."""
SCALED, SCALED_TO = 4.96, 4
"""Times the goodput of one replica that `SCALED_TO` have: CodeLlama2-34B."""
SCALING = f"{SCALED} (CodeLlama2-34B), 5.47 (Qwen2-72B) from 1 to {SCALED_TO} replicas, then linear, then less"
SPLIT_AT, SPLIT_DIP = 12, 0.85
"""Mitosis: the replica with which the macro instance splits, and the attainment near it."""


def of_data(data: str, system: str) -> Printed:
    """The gain on a data set over a system, which the paper gives for all of its kind together."""
    without, with_it = DATA_GAINS[data]
    return {"with disaggregation": with_it} if system == PD else {"without disaggregation": without}


def gains_shown(printed: Printed) -> str:
    """For a table."""
    return _shown({name: f"{value:.2f}" for name, value in printed.items()})


def changes_shown(printed: Printed, goodputs: str = "") -> str:
    """For a table, in percent."""
    told = _shown({name: f"{100 * value:+.1f} %" for name, value in printed.items()}) or "-"
    return f"{goodputs} ({told})" if goodputs else told


def _shown(told: Mapping[str, str]) -> str:
    return ", ".join(f"{value} ({name})" if len(told) > 1 else value for name, value in told.items())

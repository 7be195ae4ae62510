"""The requests of one point: Poisson arrivals and uniform lengths, the same for the live system and the simulator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from experiments.macro_live.workload import Ask
from simulator.traces import AZURE_COLUMNS

PROMPT_TOKENS, OUTPUT_TOKENS = (64, 320), (16, 48)
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def asked(per_s: float, seconds: float, seed: int) -> tuple[Ask, ...]:
    """What arrives within `seconds`; the first at 0. The same arguments give the same requests."""
    chance = random.Random(f"calibration {per_s} {seed}")
    at_s, found = 0.0, []
    while at_s < seconds:
        prompt, output = chance.randint(*PROMPT_TOKENS), chance.randint(*OUTPUT_TOKENS)
        found.append(Ask(at_s=at_s, key="", prompt_tokens=prompt, output_tokens=output))
        at_s += chance.expovariate(per_s)
    return tuple(found)


def write_trace(path: Path, requests: Sequence[Ask]) -> None:
    """The requests as a trace that the simulator plays."""
    lines = [",".join(AZURE_COLUMNS)]
    for one in requests:
        at = (_FIRST + timedelta(seconds=one.at_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
        lines.append(f"{at},{one.prompt_tokens},{one.output_tokens}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")

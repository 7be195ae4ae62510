"""Measures cases, each in a fresh process, and keeps what was found: a run that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from experiments.scale.cases import BATCH, CHUNK, NUM_BLOCKS, beside_vidur, cost
from experiments.scale.one import Case, Measured
from simulator.workload import draw

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("vidur_side.py")
HOURS_S = 4 * 3600.0


class Store:
    """Lines of JSON: what was measured, under a name, and the load of the machine when it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self._known = {entry["name"]: entry for entry in map(json.loads, lines)}

    def found(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was measured under this name, now or earlier."""
        if name not in self._known:
            load = os.getloadavg()[0]
            found = {**measure(), "load": load, "on": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "name": name}
            with self._path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            self._known[name] = found
        return dict(self._known[name])


def name_of(case: Case, number: int = 0) -> str:
    """Under which a case is kept; `number` tells repetitions apart. Not the folder of the traces."""
    return f"{msgspec.json.encode(msgspec.structs.replace(case, traces='')).decode()}#{number}"


def ours(case: Case) -> dict[str, Any]:
    """One run of ours."""
    words = [sys.executable, "-m", "experiments.scale.one"]
    done = subprocess.run(
        words, cwd=ROOT, input=msgspec.json.encode(case), stdout=subprocess.PIPE, check=True, timeout=HOURS_S
    )
    return dict(msgspec.to_builtins(msgspec.json.decode(done.stdout, type=Measured)))


def vidur(python: str, case: Case, *, native: bool) -> dict[str, Any]:
    """One run of Vidur with the same requests and step times. Raises `CalledProcessError` when it does not end well."""
    scenario = beside_vidur(Path(case.traces), case.replicas, case.num_requests)
    arrivals = islice(draw(scenario.workload, Random(0)), case.num_requests)
    given = {
        "cost": msgspec.to_builtins(cost()),
        "replicas": case.replicas,
        "batch": BATCH,
        "chunk": CHUNK,
        "num_blocks": NUM_BLOCKS,
        "native": native,
        "requests": [(arrival.at_s, len(arrival.prompt), arrival.output_tokens) for arrival in arrivals],
    }
    done = subprocess.run(
        [python, str(SIDE)],
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
        timeout=HOURS_S,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))

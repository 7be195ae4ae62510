"""Runs cases, each in a fresh process: ours and Vidur's."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import msgspec

from contracts.errors import PhaseServeError
from experiments.scale.cases import BATCH, CHUNK, NUM_BLOCKS, beside_vidur, cost
from experiments.scale.one import Case, Measured
from simulator.workload import draw

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("vidur_side.py")
HOURS_S = 4 * 3600.0


class NotMeasured(PhaseServeError):
    """A run did not end well."""

    code = "not_measured"


def ours(case: Case, traces: Path) -> Measured:
    """One run of ours. Raises `NotMeasured`."""
    given = msgspec.json.encode(msgspec.structs.replace(case, traces=str(traces)))
    return _run([sys.executable, "-m", "experiments.scale.one"], given)


def vidur(python: str, case: Case, traces: Path, *, native: bool) -> Measured:
    """One run of Vidur with the same requests and step times. Raises `NotMeasured`."""
    scenario = beside_vidur(traces, case.replicas, case.num_requests)
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
    return _run([python, str(SIDE)], json.dumps(given).encode())


def _run(words: list[str], given: bytes) -> Measured:
    """What it says in its last line."""
    try:
        done = subprocess.run(words, cwd=ROOT, input=given, capture_output=True, check=True, timeout=HOURS_S)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing said"]
        raise NotMeasured(f"exit status {error.returncode}: {last[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise NotMeasured(f"not done after {HOURS_S:g} s") from error
    except OSError as error:
        raise NotMeasured(f"{words[0]}: {error.strerror}") from error
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)

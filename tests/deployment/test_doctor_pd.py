"""`phaseserve doctor --pd`: the proof that KV moved, and its exit code when it did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def doctor(model: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cli", "doctor", "--pd", "--model", str(model), "--threads", "1", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)


def test_the_doctor_proves_that_kv_moved(tiny_model: Path) -> None:
    done = doctor(tiny_model)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("the same text as colocated", "crossed, the KV of", "none on the decode replica", "GB/s", "behind"):
        assert words in done.stdout, done.stdout
    assert "link to r1: " in done.stdout
    assert "all is well" in done.stdout


@pytest.mark.slow
def test_the_doctor_says_when_it_does_not(tiny_model: Path) -> None:
    """A transport that reaches no other process: the replicas never find a link."""
    done = doctor(tiny_model, "--set", "transfer.transport=loopback")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr

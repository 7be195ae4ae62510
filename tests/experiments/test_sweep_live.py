"""A sweep of two rates, with real processes in network namespaces: it ends, and says what it measured."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.network.lan import missing

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(420)]
DEADLINE_S = 400.0


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_small_sweep_ends_with_every_point_and_goes_on_where_it_was(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "cli", "sweep", "--live", "--out", str(tmp_path), "--rates", "30:600:2",
            "--requests", "6", "--prompt-tokens", "64:128", "--output-tokens", "4:8"]  # fmt: skip
    first = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert first.returncode == 0, first.stderr
    assert "8 points" in first.stderr
    for words in ("crossover measured", "crossover predicted", "auto never worse"):
        assert words in first.stdout
    written = csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text()))
    rows = {(row["mode"], row["mbit_per_s"]): row for row in written}
    assert len(rows) == 8
    for rate in ("30", "600"):
        handed = rows["disaggregated", rate]
        assert handed["handed_over"] == "1"
        assert (rows["colocated", rate]["kv_bytes"], rows["phased", rate]["kv_bytes"]) == ("0", "0")
        if handed["answered"] == "6":
            assert int(handed["wire_bytes"]) > int(handed["kv_bytes"]) > 6 * 64 * 12_288
        for mode in ("colocated", "phased", "auto"):
            assert rows[mode, rate]["answered"] == "6", f"{mode} at {rate} Mbit/s"
    again = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "0 points" in again.stderr, "nothing is measured twice"
    assert again.stdout == first.stdout

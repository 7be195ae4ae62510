"""The contract suite over `ucx`, in a process of its own: `nixl` in the same process brings a second copy of UCX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("test_transport_contract.py")


def test_the_contract_over_ucx() -> None:
    program = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('ucxx') or u.find_spec('ucp') else 1)"
    if subprocess.run([sys.executable, "-c", program], check=False, timeout=30).returncode:
        pytest.skip("neither ucxx nor ucp is installed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SUITE)]
    ran = subprocess.run(
        command, env={**os.environ, "TRANSPORT_SCHEME": "ucx"}, capture_output=True, text=True, check=False, timeout=170
    )
    assert ran.returncode == 0, ran.stdout[-5000:]

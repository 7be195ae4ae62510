"""`python -m experiments.k8s_discovery.room KUBECONFIG ENDPOINTS SECONDS`: the discovery alone, without a router.

Prints one JSON object: what importing and running it takes of time and memory, and how often it asks the API server.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from contracts.discovery import ReplicaStanding
from contracts.errors import PhaseServeError
from k8s.config import KubernetesConfig
from k8s.control import discovery


def resident_bytes() -> int:
    """Now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


class FirstView:
    """A fleet side that waits for the first list with so many endpoints."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self.full = wanted, asyncio.Event()

    def found(self, endpoints: Collection[str]) -> None:
        """The list."""
        if len(endpoints) >= self._wanted:
            self.full.set()

    def lead(self, leader: str | None) -> None:
        """Nothing follows from it here."""

    def standings(self) -> Mapping[str, ReplicaStanding]:
        """Nobody is joined."""
        return {}

    def why_not_drain(self, replica_id: str) -> PhaseServeError | None:
        """No reason."""
        return None

    def tell(self, wish: object) -> None:
        """Nobody hears."""

    def note(self, kind: str, reason: str, **numbers: float) -> None:
        """Nobody reads."""


async def measure(kubeconfig: str, endpoints: int, seconds: float) -> dict[str, Any]:
    """Run the discovery until its view is full, then for so long."""
    imported_bytes, imported_cpu_s = resident_bytes(), time.process_time()
    fleet = FirstView(endpoints)
    began_s = time.monotonic()
    found = await discovery(KubernetesConfig(kubeconfig=kubeconfig))
    task = asyncio.create_task(found.run(fleet))
    await asyncio.wait_for(fleet.full.wait(), 60)
    full_s, before = time.monotonic() - began_s, dict(found.figures())
    cpu_s = time.process_time()
    await asyncio.sleep(seconds)
    after, cpu_s = dict(found.figures()), time.process_time() - cpu_s
    task.cancel()
    await asyncio.wait([task])
    per_minute = 60.0 / seconds
    return {
        "imported_mb": imported_bytes / 1e6,
        "imported_cpu_s": imported_cpu_s,
        "full_view_s": full_s,
        "resident_mb": resident_bytes() / 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "calls_per_minute": (after["calls_total"] - before["calls_total"]) * per_minute,
        "events_per_minute": (after["events_total"] - before["events_total"]) * per_minute,
        "cpu_s_per_minute": cpu_s * per_minute,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))

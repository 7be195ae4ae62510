"""Replicas by a fixed list: as many as are named, for as long as the router runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from contracts.cluster_io import ProposeReplicas
from contracts.discovery import FleetSide


class StaticDiscovery:
    """A `contracts.discovery.Discovery`."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = endpoints

    async def run(self, fleet: FleetSide) -> None:
        """Says them once."""
        fleet.found(self._endpoints)
        await asyncio.Event().wait()

    def proposed(self, proposal: ProposeReplicas) -> None:
        """Nobody here starts or stops replicas."""

    def trouble(self) -> str | None:
        """Never."""
        return None

    def figures(self) -> Mapping[str, float]:
        """How many."""
        return {"endpoints": len(self._endpoints)}

"""What a simulated replica says to its router, in the words of `contracts.wire`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from contracts.errors import ErrorInfo
from contracts.handoff import KVTicket
from contracts.prefixes import PrefixChange
from contracts.replica_io import SequenceOutput
from contracts.views import ReplicaView
from simulator.transfers import Body


class Wire(Protocol):
    """What a replica says to its router; each message arrives later, in order."""

    def produced(self, body: Body, outputs: tuple[SequenceOutput, ...], streams: Sequence[str]) -> None:
        """What one step gave; each of `streams` got one more token and merely goes on."""
        ...

    def went_on(self, body: Body, sequence_ids: Sequence[str], ended_at: Sequence[float]) -> None:
        """Each of these streams got one more token in each of the steps that ended at these times, `now` or before."""
        ...

    def refused(self, body: Body, sequence_id: str, error: ErrorInfo) -> None: ...
    def reserved(self, body: Body, sequence_id: str, ticket: KVTicket) -> None: ...
    def viewed(self, body: Body, view: ReplicaView) -> None: ...
    def cached(self, body: Body, change: PrefixChange) -> None: ...
    def left(self, body: Body, reason: str) -> None: ...

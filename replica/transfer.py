"""What one replica needs to give KV away and to take it in, and the service's figures in the replica's view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from contracts.views import ReplicaView
from prefill_workers.kv_giver import KVGiver
from replica.handoffs import Handoffs
from replica.inbox import TransferInbox


class TransferCounters(Protocol):
    """Counted by the service since its start."""

    @property
    def bytes_in(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def checksum_errors(self) -> int: ...


@dataclass(slots=True, eq=False)
class Transfer:
    """The replica's end of the transfer service. `running`: whether it still answers."""

    giver: KVGiver
    handoffs: Handoffs
    inbox: TransferInbox
    counters: TransferCounters
    running: Callable[[], bool]

    def counted(self, view: ReplicaView) -> ReplicaView:
        """The view with what the service counted."""
        counters = self.counters
        return msgspec.structs.replace(
            view,
            kv_bytes_in=counters.bytes_in,
            kv_bytes_out=counters.bytes_out,
            checksum_errors=counters.checksum_errors,
        )

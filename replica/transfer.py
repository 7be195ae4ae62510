"""What one replica needs to give KV away and to take it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefill_workers.kv_giver import KVGiver
from replica.handoffs import Handoffs
from replica.inbox import TransferInbox


@dataclass(slots=True, eq=False)
class Transfer:
    """The replica's end of the transfer service. `running`: whether it still answers."""

    giver: KVGiver
    handoffs: Handoffs
    inbox: TransferInbox
    running: Callable[[], bool]

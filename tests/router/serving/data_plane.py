"""The KV on its way between scripted replicas, and who a scripted replica says it is."""

from __future__ import annotations

import asyncio

from contracts.handoff import KVTicket
from contracts.kv import Fingerprint, KVLayout
from contracts.request import Request
from contracts.views import ReplicaIdentity
from engine.checkpoint.model_files import ModelFiles


def identity_of(files: ModelFiles, replica_id: str, incarnation: str) -> ReplicaIdentity:
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=incarnation,
        version="test",
        model=files.spec,
        fingerprint=Fingerprint(model_digest=files.spec.digest, layout=layout),
        num_blocks=4096,
        max_running=256,
        max_waiting=256,
    )


class DataPlane:
    """The KV on its way, as far as a router's tests need it: under each ticket the first token that the sender sampled.

    Shared by the replicas of a test; a ticket that nobody issued does not exist here.
    """

    def __init__(self) -> None:
        self.slots: dict[str, asyncio.Future[int]] = {}

    def issue(self, receiver: ReplicaIdentity, request: Request) -> KVTicket:
        ticket = KVTicket(
            ticket_id=f"{len(self.slots):032x}",
            receiver_id=receiver.replica_id,
            receiver_incarnation=receiver.incarnation,
            num_tokens=len(request.prompt_token_ids) + len(request.output_token_ids),
            skip_tokens=0,
            blocks=(0,),
            block_size=16,
        )
        self.slots[ticket.ticket_id] = asyncio.get_running_loop().create_future()
        return ticket

"""`python -m experiments.k8s_discovery.replicas MODEL HOST...`: one process that says it is a replica at each address.

Each connection to it is another replica: a welcome, then a heartbeat twice a second, and nothing to do.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import zmq
import zmq.asyncio

from contracts import wire
from contracts.kv import Fingerprint, KVLayout
from contracts.phase import Phase, Role
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from engine.checkpoint.resolve import resolve_model

PORT = 5555
HEARTBEAT_S = 0.5


def view_of(replica_id: str) -> ReplicaView:
    """An idle replica's."""
    return ReplicaView(
        replica_id=replica_id,
        incarnation="1",
        role=Role.MIXED,
        phase=Phase.DECODE,
        draining=False,
        lease_left_s=0.0,
        waiting=0,
        waiting_tokens=0,
        oldest_waiting_s=0.0,
        backlog_s=0.0,
        running=0,
        slack_quantiles_s=(),
        slack_mean_s=0.0,
        decode_step_s=0.0,
        free_blocks=1000,
        num_blocks=1000,
        block_size=16,
        cost=StepCost(a0=0.01, a1=1e-4, b0=0.0, b1=0.0, b2=0.0, b3=1e-4),
        acked_submit_index=0,
        steps_done=0,
        step_age_s=0.0,
    )


async def serve(model: str, hosts: list[str]) -> None:
    """Until killed."""
    spec = resolve_model(model).spec
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
    template = ReplicaIdentity(
        replica_id="",
        incarnation="1",
        version="0",
        model=spec,
        fingerprint=Fingerprint(model_digest=spec.digest, layout=layout),
        num_blocks=1000,
        max_running=64,
        max_waiting=256,
    )
    socket = zmq.asyncio.Context().socket(zmq.ROUTER)
    for host in hosts:
        socket.bind(f"tcp://{host}:{PORT}")
    print("READY", flush=True)
    beats: dict[bytes, bytes] = {}

    async def beat() -> None:
        while True:
            for peer, frame in list(beats.items()):
                await socket.send_multipart([peer, frame])
            await asyncio.sleep(HEARTBEAT_S)

    beating = asyncio.create_task(beat())
    while not beating.done():
        peer, frame = await socket.recv_multipart()
        if isinstance(wire.decode_router_message(frame), wire.Hello) and peer not in beats:
            name = f"pool-{len(beats)}"
            welcome = wire.Welcome(identity=msgspec.structs.replace(template, replica_id=name), view=view_of(name))
            beats[peer] = wire.encode(wire.Heartbeat(view=view_of(name)))
            await socket.send_multipart([peer, wire.encode(welcome)])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))

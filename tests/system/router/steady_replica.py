"""A program, not a test: a replica that emits one token for each of N sequences at a steady pace.

Usage: steady_replica.py STREAMS STEPS PACE_S. Prints its endpoint, then the moments (CLOCK_MONOTONIC) at which each
step's outputs were handed to the socket, as JSON. The same clock on one machine lets a client tell what was added.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import zmq
import zmq.asyncio

from contracts import wire
from contracts.kv import Fingerprint
from contracts.phase import Phase, Role
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from contracts.views import SLACK_QUANTILES, ReplicaIdentity, ReplicaView, StepCost
from engine.fake import fake_layout, fake_spec

VOCAB = 400


class SteadyReplica:
    """Waits until all its streams are there, then steps."""

    def __init__(self, num_streams: int) -> None:
        self.num_streams = num_streams
        self.live: list[str] = []
        self.acked = 0
        self.steps = 0
        self.peer: bytes | None = None
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")

    def identity(self) -> ReplicaIdentity:
        spec = fake_spec(vocab_size=VOCAB)
        return ReplicaIdentity(
            replica_id="steady",
            incarnation="1",
            version="test",
            model=spec,
            fingerprint=Fingerprint(model_digest=spec.digest, layout=fake_layout(spec)),
            num_blocks=1 << 16,
            max_running=1024,
            max_waiting=1024,
        )

    def view(self) -> ReplicaView:
        return ReplicaView(
            replica_id="steady",
            incarnation="1",
            role=Role.MIXED,
            phase=Phase.MIXED,
            draining=False,
            lease_left_s=0.0,
            waiting=0,
            waiting_tokens=0,
            oldest_waiting_s=0.0,
            backlog_s=0.0,
            running=len(self.live),
            slack_quantiles_s=tuple(10.0 for _ in SLACK_QUANTILES),
            slack_mean_s=10.0,
            decode_step_s=0.001,
            free_blocks=1 << 16,
            num_blocks=1 << 16,
            block_size=16,
            cost=StepCost(a0=1e-4, a1=1e-7, b0=0.0, b1=0.0, b2=0.0, b3=0.0),
            acked_submit_index=self.acked,
            steps_done=self.steps,
            step_age_s=0.0,
        )

    async def send(self, message: wire.ReplicaMessage) -> None:
        if self.peer is not None:
            await self.socket.send_multipart([self.peer, wire.encode(message)])

    async def listen(self) -> None:
        while True:
            self.peer, frame = await self.socket.recv_multipart()
            match wire.decode_router_message(frame):
                case wire.Hello():
                    await self.send(wire.Welcome(identity=self.identity(), view=self.view()))
                case wire.Submit(requests=requests):
                    self.live += [request.request_id for request in requests]
                    self.acked = max(self.acked, *(request.submit_index for request in requests))
                case _:
                    await self.send(wire.Heartbeat(view=self.view()))

    async def step(self, index: int, last: bool) -> float:
        """Token number `index` for everybody; when it was handed over."""
        finish = FinishReason.LENGTH if last else None
        said: dict[str, Any] = {"token_ids": (300 + index % 50,), "finish": finish, "first_index": index}
        outputs = tuple(SequenceOutput(request_id=name, **said) for name in self.live)
        message = wire.Outputs(outputs=outputs)
        self.steps += 1
        at_s = time.monotonic()
        await self.send(message)
        await self.send(wire.Heartbeat(view=self.view()))
        return at_s

    async def run(self, num_steps: int, pace_s: float) -> list[float]:
        listening = asyncio.create_task(self.listen())
        print(f"tcp://127.0.0.1:{self.port}", flush=True)
        async with asyncio.timeout(60):
            while len(self.live) < self.num_streams:  # noqa: ASYNC110  (set by messages, polled while nothing runs)
                await asyncio.sleep(0.01)
        moments = []
        for number in range(num_steps):
            began_s = time.monotonic()
            moments.append(await self.step(number, number == num_steps - 1))
            await asyncio.sleep(max(0.0, pace_s - (time.monotonic() - began_s)))
        await asyncio.sleep(1.0)
        listening.cancel()
        self.context.destroy(linger=0)
        return moments


def main() -> None:
    """See the module's text."""
    num_streams, num_steps, pace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(asyncio.run(SteadyReplica(num_streams).run(num_steps, pace_s))), flush=True)


if __name__ == "__main__":
    main()

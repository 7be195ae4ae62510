"""A wire between router and replica that notes when each frame passed. `python -m experiments.router_bench.tap`.

Frames are forwarded as they come and read only at the end, so the tap costs the same few microseconds for each. Times
are `time.monotonic()`, one clock for all processes of a machine.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

READY_MARK = "TAP_READY "


class Passed(msgspec.Struct, frozen=True):
    """One frame: when it came, whether it was on its way to the replica, and its bytes."""

    at_s: float
    to_replica: bool
    frame: bytes


def forward(replica_endpoint: str, notes: Path) -> None:
    """Forward one router's traffic until SIGTERM, then write what passed to `notes` (msgpack)."""
    passed: list[Passed] = []
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    with zmq.Context() as context, context.socket(zmq.ROUTER) as front, context.socket(zmq.DEALER) as back:
        for end in (front, back):
            end.setsockopt(zmq.LINGER, 0)
        port = front.bind_to_random_port("tcp://127.0.0.1")
        back.connect(replica_endpoint)
        print(f"{READY_MARK}tcp://127.0.0.1:{port}", flush=True)
        poller = zmq.Poller()
        poller.register(front, zmq.POLLIN)
        poller.register(back, zmq.POLLIN)
        router = b""
        while running:
            for end, _ in poller.poll(timeout=200):
                if end is front:
                    router, frame = front.recv_multipart()
                    passed.append(Passed(time.monotonic(), True, frame))
                    back.send(frame)
                else:
                    frame = back.recv()
                    passed.append(Passed(time.monotonic(), False, frame))
                    if router:
                        front.send_multipart([router, frame])
    notes.write_bytes(msgspec.msgpack.encode(passed))


if __name__ == "__main__":
    forward(sys.argv[1], Path(sys.argv[2]))

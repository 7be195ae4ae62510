"""Mooncake's transfer engine over TCP: one synchronous batch write per hand-off, one entry per span.

No checksum, no ticket, no authentication. A byte over a plain socket tells the taker that it is there. Needs
`mooncake-transfer-engine` (or its `-non-cuda` build) and numpy.
"""

from __future__ import annotations

import importlib
import socket
from typing import Any

from experiments.transfer_bench.end import Answer, PoolEnd, serve

WAIT_S = 60.0


class MooncakeEnd(PoolEnd):
    """Either end; which one follows from the commands."""

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Make the pool and register it."""
        self.make_pool(shape, seed)
        module: Any = importlib.import_module("mooncake.engine")
        self._engine = module.TransferEngine()
        host = options["host"]
        if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("the engine did not start")
        numpy = importlib.import_module("numpy")
        self._base = int(numpy.frombuffer(self.pool, numpy.uint8).__array_interface__["data"][0])
        if self._engine.register_memory(self._base, self.shape.num_bytes) != 0:
            raise RuntimeError("the pool cannot be registered")
        self._listener = socket.create_server((host, 0))
        port = self._listener.getsockname()[1]
        return {"target": f"{host}:{self._engine.get_rpc_port()}", "base": self._base, "host": host, "port": port}

    def connect(self, target: str, base: int, host: str, port: int) -> Answer:
        """Giver: know the taker."""
        self._target, self._theirs = target, base
        self._sock = socket.create_connection((host, port), timeout=WAIT_S)
        return {"transport": "mooncake tcp"}

    def accept(self, target: str, base: int, host: str, port: int) -> Answer:
        """Taker: wait for the giver."""
        self._sock, _ = self._listener.accept()
        self._sock.settimeout(WAIT_S)
        return {}

    def take(self, table: list[int]) -> Answer:
        """The taker's blocks of the next hand-off."""
        self.meter.start()
        return {"table": table}

    def taken(self) -> Answer:
        """Wait for the giver's word."""
        if not self._sock.recv(1):
            raise RuntimeError("the giver is gone")
        return self.meter.stop()

    def give(self, table: list[int], ticket: Answer) -> Answer:
        """Write all, then tell."""
        self.meter.start()
        pieces = common(self.shape.spans(table), self.shape.spans(ticket["table"]))
        mine = [self._base + piece[0] for piece in pieces]
        theirs = [self._theirs + piece[1] for piece in pieces]
        done = self._engine.batch_transfer_sync_write(self._target, mine, theirs, [piece[2] for piece in pieces])
        if done != 0:
            raise RuntimeError(f"the write returned {done}")
        self._sock.sendall(b"x")
        return self.meter.stop()


def common(sources: list[tuple[int, int]], targets: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """`(source, target, length)` of the pieces that are contiguous on both sides."""
    pieces: list[tuple[int, int, int]] = []
    index, done = 0, 0
    for offset, length in sources:
        start = 0
        while start < length:
            count = min(length - start, targets[index][1] - done)
            pieces.append((offset + start, targets[index][0] + done, count))
            start, done = start + count, done + count
            if done == targets[index][1]:
                index, done = index + 1, 0
    return pieces


if __name__ == "__main__":
    serve(MooncakeEnd())

"""The yardstick on one host: one copy by the taker's CPU out of the giver's shared memory, and nothing else."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence

import numpy as np

from experiments.transfer_bench.end import Answer, PoolEnd, Shape, fill, messages, serve

WAIT_S = 60.0
MAX_TABLE_BYTES = 1 << 20


class MemoryEnd(PoolEnd):
    """Either end. The giver's pool is shared memory; a byte over a Unix socket says that a table may be copied."""

    def __init__(self) -> None:
        super().__init__()
        self._theirs = memoryview(b"")
        self._table: Sequence[int] = ()

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Make the pool in shared memory, which goes with the process."""
        self.shape = Shape(*shape)
        self._file = os.memfd_create("pool")
        os.ftruncate(self._file, self.shape.num_bytes)
        pages = mmap.mmap(self._file, self.shape.num_bytes)
        fill(memoryview(pages), seed)
        self.pool = memoryview(pages)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")
        self._listener.listen(1)
        return {"file": f"/proc/{os.getpid()}/fd/{self._file}", "name": self._listener.getsockname().decode("latin1")}

    def connect(self, file: str, name: str) -> Answer:
        """Giver: connect to the taker."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(WAIT_S)
        self._sock.connect(name.encode("latin1"))
        return {}

    def accept(self, file: str, name: str) -> Answer:
        """Taker: map the giver's pool, whole and at once."""
        self._sock, _ = self._listener.accept()
        self._sock.settimeout(WAIT_S)
        descriptor = os.open(file, os.O_RDONLY)
        pages = mmap.mmap(descriptor, self.shape.num_bytes, prot=mmap.PROT_READ)
        os.close(descriptor)
        self._theirs = memoryview(pages)
        np.frombuffer(pages, dtype=np.uint8)[:: mmap.PAGESIZE].sum()
        return {}

    def take(self, table: list[int]) -> Answer:
        """The taker's blocks of the next hand-off."""
        self.meter.start()
        self._table = table
        return {}

    def taken(self) -> Answer:
        """Copy, once the giver says what."""
        theirs = np.frombuffer(self._sock.recv(MAX_TABLE_BYTES), dtype=np.int32).tolist()
        sources, targets = (messages(self.shape.spans(table)) for table in (theirs, self._table))
        for source, target in zip(sources, targets, strict=True):
            views = [self._theirs[offset : offset + length] for offset, length in source]
            copy(views, self.views(target))
        return self.meter.stop()

    def give(self, table: list[int], ticket: Answer) -> Answer:
        """Tell which blocks."""
        self.meter.start()
        self._sock.send(np.asarray(table, dtype=np.int32).tobytes())
        return self.meter.stop()


def copy(sources: list[memoryview], targets: list[memoryview]) -> None:
    """Copy pieces to pieces that may be cut differently, in order."""
    if [len(view) for view in sources] == [len(view) for view in targets]:
        for source, target in zip(sources, targets, strict=True):
            target[:] = source
        return
    index, done = 0, 0
    for source in sources:
        start = 0
        while start < len(source):
            count = min(len(source) - start, len(targets[index]) - done)
            targets[index][done : done + count] = source[start : start + count]
            start, done = start + count, done + count
            if done == len(targets[index]):
                index, done = index + 1, 0


if __name__ == "__main__":
    serve(MemoryEnd())

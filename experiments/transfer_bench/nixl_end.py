"""NIXL's own API as connectors of serving engines use it: one prepared descriptor per block and layer, picked by index.

No checksum, no ticket, no authentication. `options.operation`: WRITE (the giver pushes) or READ (the taker pulls, as
vLLM's NixlConnector does by default); a notification tells the other side. Without NIXL's progress thread both sides
poll. Needs `nixl_cu12` and numpy.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from experiments.transfer_bench.end import Answer, PoolEnd, serve

POLL_S = 0.0002
WAIT_S = 60.0
DONE = b"done"


class NixlEnd(PoolEnd):
    """Either end; which one follows from the commands."""

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Make the pool and register it."""
        self.make_pool(shape, seed)
        self._operation = options["operation"]
        self._name = "taker" if options["taker"] else "giver"
        api: Any = importlib.import_module("nixl_cu12._api")
        self._agent = api.nixl_agent(self._name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        numpy = importlib.import_module("numpy")
        self._base = int(numpy.frombuffer(self.pool, numpy.uint8).__array_interface__["data"][0])
        self._agent.register_memory([(self._base, self.shape.num_bytes, 0, "")], "DRAM")
        self._peer = ""
        return {"metadata": self._agent.get_agent_metadata().hex(), "base": self._base}

    def connect(self, metadata: str, base: int) -> Answer:
        """Giver: know the taker, and where its blocks lie."""
        return self._meet(metadata, base)

    def accept(self, metadata: str, base: int) -> Answer:
        """Taker: know the giver."""
        return self._meet(metadata, base)

    def _meet(self, metadata: str, base: int) -> Answer:
        peer = self._agent.add_remote_agent(bytes.fromhex(metadata))
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._mine = self._agent.prep_xfer_dlist("", self._cells(self._base), "DRAM")
        self._theirs = self._agent.prep_xfer_dlist(self._peer, self._cells(base), "DRAM")
        return {"transport": "nixl", "operation": self._operation}

    def take(self, table: list[int]) -> Answer:
        """The taker's blocks of the next hand-off."""
        self.meter.start()
        self._table = table
        return {"table": table}

    def taken(self) -> Answer:
        """Pull, or wait for the notification of a push."""
        if self._operation == "READ":
            theirs = [int(index) for index in self._notified().decode().split(",")]
            self._move("READ", self._indices(self._table), self._indices(theirs), DONE)
        else:
            self._notified()
        return self.meter.stop()

    def give(self, table: list[int], ticket: Answer) -> Answer:
        """Push, or tell what to pull and wait until it was."""
        self.meter.start()
        if self._operation == "READ":
            self._agent.send_notif(self._peer, ",".join(str(block) for block in table).encode())
            self._notified()
        else:
            self._move("WRITE", self._indices(table), self._indices(ticket["table"]), DONE)
        return self.meter.stop()

    def _move(self, operation: str, mine: Sequence[int], theirs: Sequence[int], note: bytes) -> None:
        handle = self._agent.make_prepped_xfer(operation, self._mine, mine, self._theirs, theirs, note)
        state = self._agent.transfer(handle)
        deadline = time.monotonic() + WAIT_S
        while state != "DONE":
            if state == "ERR" or time.monotonic() > deadline:
                raise RuntimeError(f"the transfer is in state {state}")
            time.sleep(POLL_S)
            state = self._agent.check_xfer_state(handle)
        self._agent.release_xfer_handle(handle)

    def _notified(self) -> bytes:
        """The next notification."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for notes in self._agent.get_new_notifs().values():
                return bytes(notes[0])
            time.sleep(POLL_S)
        raise RuntimeError(f"no notification within {WAIT_S:g} s")

    def _cells(self, base: int) -> list[tuple[int, int, int]]:
        size = self.shape.block_bytes
        return [(base + cell * size, size, 0) for cell in range(self.shape.num_layers * self.shape.num_blocks)]

    def _indices(self, table: Sequence[int]) -> list[int]:
        count = self.shape.num_blocks
        return [layer * count + block for layer in range(self.shape.num_layers) for block in table]


if __name__ == "__main__":
    serve(NixlEnd())

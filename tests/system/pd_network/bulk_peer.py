"""The receiving end of a transport in a process of its own: `bulk_peer.py SCHEME NUM_BYTES`.

Takes puts into a slot of so many bytes and prints, one line each: its endpoint, then for every round of `NUM_BYTES`
bytes that landed the SHA-256 of the memory. Ends when its input does.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import sys

from kvtransfer.config import TransferConfig
from kvtransfer.protocol import Span
from kvtransfer.transports import all_transports

TOKEN = bytes(range(32))
SLOT = bytes(range(16))


async def serve(scheme: str, num_bytes: int) -> None:
    memory = memoryview(mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    landed = 0

    def on_landed(_slot: bytes, _offset: int, length: int, note: bytes) -> None:
        nonlocal landed
        landed += length
        if landed >= num_bytes and note == b"last":
            landed = 0
            print(hashlib.sha256(memory[:num_bytes]).hexdigest(), flush=True)

    transport = all_transports(TransferConfig(host="127.0.0.1"))[scheme]
    receiver = transport.receiver(memory, on_landed, TOKEN.__eq__)
    await receiver.start()
    receiver.open_slot(SLOT, [Span(0, num_bytes)] if num_bytes else [])
    print(receiver.endpoint, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await receiver.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))

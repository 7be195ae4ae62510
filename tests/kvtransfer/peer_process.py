"""The other end of a link in a process of its own: `send SCHEME ENDPOINT` puts for ever, `receive SCHEME` takes puts.

Both use the token and the slot of the tests' `conftest`. The receiver prints its endpoint first.
"""

from __future__ import annotations

import asyncio
import sys

from kvtransfer.config import TransferConfig
from kvtransfer.protocol import Span, Transport
from kvtransfer.transports import all_transports

TOKEN = bytes(range(32))
SLOT = bytes(range(16))
NUM_BYTES = 16 << 20


async def send(transport: Transport, endpoint: str) -> None:
    source = memoryview(bytearray(b"\xab") * NUM_BYTES)
    sender = await transport.connect(endpoint, TOKEN, source, 10.0)
    while True:
        await sender.put(SLOT, 0, [source], b"again")


async def receive(transport: Transport) -> None:
    memory = memoryview(bytearray(NUM_BYTES))
    receiver = transport.receiver(memory, lambda *_: None, TOKEN.__eq__)
    await receiver.start()
    receiver.open_slot(SLOT, [Span(0, NUM_BYTES)])
    print(receiver.endpoint, flush=True)
    await asyncio.sleep(60.0)


def main() -> None:
    role, scheme, *endpoint = sys.argv[1:]
    transport = all_transports(TransferConfig(host="127.0.0.1"))[scheme]
    asyncio.run(send(transport, endpoint[0]) if role == "send" else receive(transport))


if __name__ == "__main__":
    main()

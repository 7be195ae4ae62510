"""A replica's data plane in a process of its own, told what to do line by line; for the tests that kill it.

    python replica_process.py NAME SETTINGS_JSON   -> {"endpoints": [...]}, then one event a line, as [name, id, reason]

Lines in: `peers JSON`, `reserve SENDER JSON`, `send JSON` (16-token blocks 0, 1, ... hold everything),
`layer ID LAYER N`.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import msgspec

from contracts.handoff import KVTicket, Peer
from contracts.kv import Fingerprint, KVLayout
from kvtransfer.config import TransferConfig
from kvtransfer.service import TransferService

NUM_BLOCKS = 64


def main(name: str, settings: str) -> None:
    layout = KVLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=16, dtype="float32")
    lock = threading.Lock()

    def say(value: Any) -> None:
        with lock:
            print(json.dumps(value), flush=True)

    def on_event(event: Any) -> None:
        about = getattr(event, "ticket_id", None) or getattr(event, "peer_id", None)
        say([type(event).__name__, about, getattr(event, "reason", "")])

    memory = memoryview(bytearray(layout.num_layers * NUM_BLOCKS * layout.block_bytes_per_layer))
    identity = (name, "1", Fingerprint(model_digest="m", layout=layout))
    config = msgspec.json.decode(settings, type=TransferConfig)
    service = TransferService(config, identity, memory, NUM_BLOCKS, on_event)
    say({"endpoints": service.start(10.0)})
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "peers":
            service.set_peers(msgspec.json.decode(rest, type=tuple[Peer, ...]))
        elif word == "reserve":
            sender, _, ticket = rest.partition(" ")
            service.reserve(msgspec.json.decode(ticket, type=KVTicket), sender)
        elif word == "send":
            service.send(msgspec.json.decode(rest, type=KVTicket), tuple(range(NUM_BLOCKS)), 0)
        elif word == "layer":
            ticket_id, layer, tokens = rest.split()
            service.layer_done(ticket_id, int(layer), int(tokens))
    service.close(5.0)


if __name__ == "__main__":
    main(*sys.argv[1:])

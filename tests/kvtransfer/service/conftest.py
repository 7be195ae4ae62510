"""What the tests of the whole service share: replicas with memory of their own, their events, and a hand-off to make.

Every test that makes replicas ends with all of them closed and no thread, descriptor or open ticket left.
"""

from __future__ import annotations

import gc
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from contracts.handoff import KVTicket, Peer
from contracts.kv import Fingerprint, KVLayout
from kvtransfer.config import TransferConfig
from kvtransfer.events import Closed, Linked, Lost, Measured, Received, SendFailed, Sent, TransferEvent, Unlinked
from kvtransfer.service import TransferService

SECRET = "a secret of the test fleet"
E = TypeVar("E")


def layout(**changes: Any) -> KVLayout:
    values: dict[str, Any] = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 8, "block_size": 16, "dtype": "float32"}
    return KVLayout(**(values | changes))


@dataclass(eq=False)
class Replica:
    """A service and everything it said."""

    name: str
    config: TransferConfig
    fingerprint: Fingerprint
    num_blocks: int = 64
    incarnation: str = "1"
    events: list[TransferEvent] = field(default_factory=list)
    endpoints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = self.fingerprint.layout.num_layers * self.num_blocks * self.fingerprint.layout.block_bytes_per_layer
        self.memory = memoryview(bytearray(size))
        self._changed = threading.Condition()
        identity = (self.name, self.incarnation, self.fingerprint)
        self.service = TransferService(self.config, identity, self.memory, self.num_blocks, self._on_event)

    @property
    def pool(self) -> NDArray[np.uint8]:
        """`[layers, blocks, 2, heads, block_size, head_dim bytes]`."""
        shape = self.fingerprint.layout
        array = np.frombuffer(self.memory, dtype=np.uint8)
        return array.reshape(shape.num_layers, self.num_blocks, 2, shape.num_kv_heads, shape.block_size, -1)

    def tokens(self, blocks: tuple[int, ...], start: int, end: int) -> NDArray[np.uint8]:
        """KV of the tokens `start` to `end - 1` of a block table: `[layers, 2, heads, tokens, bytes]`."""
        table = self.pool[:, list(blocks)].transpose(0, 2, 3, 1, 4, 5)
        return table.reshape(*table.shape[:3], -1, table.shape[-1])[:, :, :, start:end]

    @property
    def peer(self) -> Peer:
        return Peer(
            replica_id=self.name,
            incarnation=self.incarnation,
            endpoints=self.endpoints,
            fingerprint=self.fingerprint,
        )

    def _on_event(self, event: TransferEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[E], key: str = "") -> list[E]:
        with self._changed:
            found = [event for event in self.events if isinstance(event, kind)]
        return [one for one in found if key in ("", getattr(one, "ticket_id", ""), getattr(one, "peer_id", ""))]

    def until(self, kind: type[E], key: str = "", *, count: int = 1, within_s: float = 15.0) -> E:
        """The `count`-th event of this kind (about this ticket or peer)."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while True:
                found = [event for event in self.events if isinstance(event, kind)]
                found = [
                    one for one in found if key in ("", getattr(one, "ticket_id", ""), getattr(one, "peer_id", ""))
                ]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                assert left > 0, f"{self.name}: no {kind.__name__} in {self.events[-20:]}"
                self._changed.wait(left)


@dataclass(eq=False)
class Rig:
    """Replicas, and what is done between two of them."""

    scheme: str = "loopback"
    replicas: list[Replica] = field(default_factory=list)

    def replica(
        self, name: str, *, fingerprint: Fingerprint | None = None, start: bool = True, **changes: Any
    ) -> Replica:
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "transport": self.scheme,
            "secret": SECRET,
            "silence_s": 2.0,
            "connect_deadline_s": 3.0,
        }
        own = {key: changes.pop(key) for key in ("num_blocks", "incarnation") if key in changes}
        config = TransferConfig(**(settings | changes))
        made = Replica(name, config, fingerprint or Fingerprint(model_digest="m", layout=layout()), **own)
        self.replicas.append(made)
        if start:
            made.endpoints = made.service.start(5.0)
        return made

    def pair(self, **changes: Any) -> tuple[Replica, Replica]:
        """A giver with `changes` and a taker, linked, the giver's memory full of random bytes."""
        giver, taker = self.replica("p0", **changes), self.replica("d0")
        self.link(giver, taker)
        return giver, taker

    def link(self, giver: Replica, *takers: Replica) -> None:
        giver.memory[:] = secrets.token_bytes(giver.memory.nbytes)
        giver.service.set_peers([taker.peer for taker in takers])
        for taker in takers:
            giver.until(Linked, taker.name)

    def ticket(self, taker: Replica, blocks: tuple[int, ...], num_tokens: int, skip_tokens: int = 0) -> KVTicket:
        return KVTicket(
            ticket_id=secrets.token_hex(16),
            receiver_id=taker.name,
            receiver_incarnation=taker.incarnation,
            num_tokens=num_tokens,
            skip_tokens=skip_tokens,
            blocks=blocks,
            block_size=taker.fingerprint.layout.block_size,
        )

    def compute(self, giver: Replica, ticket: KVTicket, start: int, chunk: int) -> None:
        """As an engine does: chunk by chunk, layer by layer, then the commit."""
        for ready in [*range(start + chunk, ticket.num_tokens, chunk), ticket.num_tokens]:
            for layer in range(giver.fingerprint.layout.num_layers):
                giver.service.layer_done(ticket.ticket_id, layer, ready)
        giver.service.commit(ticket.ticket_id, b"first token of " + ticket.ticket_id.encode())

    def begin(self, giver: Replica, taker: Replica, ticket: KVTicket, table: tuple[int, ...], ready: int = 0) -> None:
        taker.service.reserve(ticket, giver.name)
        giver.service.send(ticket, table, ready)

    def hand_over(
        self,
        giver: Replica,
        taker: Replica,
        ticket: KVTicket,
        table: tuple[int, ...],
        *,
        ready: int = 0,
        chunk: int = 1 << 20,
    ) -> Received:
        """A whole hand-off that must succeed: both ends say so, and the tokens are the same."""
        self.begin(giver, taker, ticket, table, ready)
        self.compute(giver, ticket, ready, chunk)
        received = taker.until(Received, ticket.ticket_id)
        assert giver.until(Sent, ticket.ticket_id).num_bytes == received.report.num_bytes
        self.check(giver, taker, ticket, table)
        return received

    def check(self, giver: Replica, taker: Replica, ticket: KVTicket, table: tuple[int, ...]) -> None:
        sent = giver.tokens(table, ticket.skip_tokens, ticket.num_tokens)
        got = taker.tokens(ticket.blocks, 0, ticket.num_tokens - ticket.skip_tokens)
        assert np.array_equal(sent, got)

    def close(self) -> None:
        for replica in self.replicas:
            replica.service.close(5.0)


def _held() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


@pytest.fixture(params=[pytest.param("loopback", marks=pytest.mark.slow), "tcp"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Over the in-memory transport and over TCP."""
    yield from _rig(request.param)


@pytest.fixture
def memory_rig() -> Iterator[Rig]:
    """Over the in-memory transport only."""
    yield from _rig("loopback")


@pytest.fixture
def tcp_rig() -> Iterator[Rig]:
    """Over TCP only."""
    yield from _rig("tcp")


def _rig(scheme: str) -> Iterator[Rig]:
    before = _held()
    made = Rig(scheme)
    yield made
    made.close()
    for _ in range(40):
        if _held() <= before:
            break
        time.sleep(0.05)
    assert _held() <= before


@pytest.fixture
def kinds() -> dict[str, type]:
    """The events by name, for tests that are parametrized."""
    return {kind.__name__: kind for kind in (Closed, Lost, Measured, Received, SendFailed, Sent, Unlinked)}


@pytest.fixture
def make_layout() -> Callable[..., KVLayout]:
    """A small layout with changes."""
    return layout

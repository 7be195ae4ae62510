"""What the tests of the data plane share: every transport that works here, a linked pair, and "nothing is left"."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvtransfer.config import TransferConfig
from kvtransfer.protocol import BulkReceiver, BulkSender, Span, Transport
from kvtransfer.transports import all_transports

TOKEN = bytes(range(32))
SLOT = bytes(range(16))
CONFIG = TransferConfig(host="127.0.0.1", silence_s=1.0)
ONLY = os.environ.get("TRANSPORT_SCHEME", "")
"""`ucx` has the contract suite run in a process of its own, since two copies of UCX in one end in a crash."""


def schemes() -> list[str]:
    """The transports that this process may use."""
    found = [
        scheme
        for scheme, transport in all_transports(CONFIG).items()
        if ONLY in ("", scheme) and (scheme != "ucx" or ONLY) and transport.unavailable() is None
    ]
    return found if ONLY else [*found, "tcp+tls"]


PEER_PROGRAM = Path(__file__).with_name("peer_process.py")


@dataclass
class Link:
    """A receiver with its memory, and a way to connect senders to it. `landed` are the announced puts, in order."""

    transport: Transport
    memory: memoryview
    landed: list[tuple[bytes, int, int, bytes]] = field(default_factory=list)
    tokens: set[bytes] = field(default_factory=lambda: {TOKEN})
    senders: list[BulkSender] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    source: memoryview = field(default_factory=lambda: memoryview(bytearray(os.urandom(4 << 20))))

    def __post_init__(self) -> None:
        self.receiver: BulkReceiver = self.transport.receiver(self.memory, self._land, self.tokens.__contains__)

    def _land(self, slot_id: bytes, offset: int, length: int, note: bytes) -> None:
        self.landed.append((slot_id, offset, length, note))
        self.arrived.set()

    async def connect(self, token: bytes = TOKEN, source: memoryview | None = None) -> BulkSender:
        memory = self.source if source is None else source
        sender = await self.transport.connect(self.receiver.endpoint, token, memory, 5.0)
        self.senders.append(sender)
        return sender

    async def until_landed(self, count: int, deadline_s: float = 10.0) -> None:
        async with asyncio.timeout(deadline_s):
            while len(self.landed) < count:
                self.arrived.clear()
                await self.arrived.wait()

    async def stays_at(self, count: int, seconds: float = 0.1) -> None:
        await asyncio.sleep(seconds)
        assert len(self.landed) == count

    def bytes_of(self, spans: Sequence[Span]) -> bytes:
        return b"".join(self.memory[span.offset : span.offset + span.length] for span in spans)

    async def close(self) -> None:
        for sender in self.senders:
            await sender.close()
        await self.receiver.close()


@pytest.fixture(params=schemes())
def transport(request: pytest.FixtureRequest) -> Transport:
    """Each transport that can be used on this machine, and `tcp` encrypted."""
    scheme, _, tls = request.param.partition("+")
    if not tls:
        return all_transports(CONFIG)[scheme]
    files = request.getfixturevalue("tls_files")("ours")
    return all_transports(TransferConfig(host="127.0.0.1", silence_s=1.0, **files))[scheme]


@pytest.fixture
async def make_link() -> AsyncIterator[Callable[[Transport, int], Awaitable[Link]]]:
    """Starts receivers over a memory of so many bytes; closes everything at the end, after which no task is left."""
    links: list[Link] = []

    async def make(transport: Transport, num_bytes: int) -> Link:
        link = Link(transport, memoryview(bytearray(num_bytes)))
        links.append(link)
        await link.receiver.start()
        return link

    yield make
    for link in links:
        await link.close()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, left = await asyncio.wait(others, timeout=5.0)
        assert not left


@pytest.fixture
async def link(transport: Transport, make_link: Callable[[Transport, int], Awaitable[Link]]) -> Link:
    """A receiver with 1 MiB of memory."""
    return await make_link(transport, 1 << 20)


@dataclass(frozen=True)
class Resources:
    """What a process holds."""

    descriptors: int
    threads: int

    @staticmethod
    def now() -> Resources:
        gc.collect()
        return Resources(len(list(Path("/proc/self/fd").iterdir())), threading.active_count())


@pytest.fixture
def resources() -> Callable[[], Resources]:
    """Count descriptors and threads."""
    return Resources.now


@pytest.fixture
async def start_peer() -> AsyncIterator[Callable[..., Awaitable[asyncio.subprocess.Process]]]:
    """Runs the other end in a process of its own (`peer_process.py`); killed at the end."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str) -> asyncio.subprocess.Process:
        command = [sys.executable, str(PEER_PROGRAM), *arguments]
        root = str(PEER_PROGRAM.parents[2])
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()

"""What several rooms' tests need: a router's end of the wire without a router, and certificates."""

from __future__ import annotations

import asyncio
import gc
import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import pytest
import zmq
import zmq.asyncio

from contracts import wire
from contracts.replica_io import SequenceOutput
from contracts.request import Request, SamplingParams

Message = TypeVar("Message", bound=wire.ReplicaMessage)
_names = itertools.count(1)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: no collection during a test looks through them."""
    gc.collect()
    gc.freeze()


class WireClient:
    """A DEALER that speaks to one replica. Keeps every message it read, in order."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, router_id: str, **options: int) -> None:
        self.router_id = router_id
        self.heard: list[wire.ReplicaMessage] = []
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(endpoint)

    async def send(self, message: wire.RouterMessage) -> None:
        await self.socket.send(wire.encode(message))

    async def read(self, deadline_s: float = 10.0) -> wire.ReplicaMessage:
        frame = await asyncio.wait_for(self.socket.recv(), deadline_s)
        message = wire.decode_replica_message(frame)
        self.heard.append(message)
        return message

    async def wait(self, kind: type[Message], deadline_s: float = 10.0, **wanted: Any) -> Message:
        """The next message of this kind whose fields have these values."""
        async with asyncio.timeout(deadline_s):
            while True:
                message = await self.read(deadline_s)
                if isinstance(message, kind) and all(getattr(message, k) == v for k, v in wanted.items()):
                    return message

    async def wait_view(self, check: Callable[[Any], bool], deadline_s: float = 10.0) -> Any:
        """The next heartbeat's view that passes `check`."""
        async with asyncio.timeout(deadline_s):
            while not check(view := (await self.wait(wire.Heartbeat, deadline_s)).view):
                pass
        return view

    async def hello(self) -> wire.Welcome:
        await self.send(wire.Hello(router_id=self.router_id))
        return await self.wait(wire.Welcome)

    async def submit(self, *request_ids: str, prompt: Iterable[int] = (1, 2, 3), **sampling: Any) -> None:
        params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **sampling})
        prompt_ids = tuple(prompt)
        requests = tuple(
            Request(request_id=request_id, prompt_token_ids=prompt_ids, sampling=params) for request_id in request_ids
        )
        await self.send(wire.Submit(requests=requests))

    def outputs(self, request_id: str) -> list[SequenceOutput]:
        """Everything heard about one request so far."""
        outputs = [m.outputs for m in self.heard if isinstance(m, wire.Outputs)]
        return [output for output in itertools.chain(*outputs) if output.request_id == request_id]

    async def wait_outputs(self, request_id: str, num_tokens: int, deadline_s: float = 20.0) -> None:
        """Read until so many tokens of a request arrived."""
        async with asyncio.timeout(deadline_s):
            while sum(len(output.token_ids) for output in self.outputs(request_id)) < num_tokens:
                self._accepted(request_id, await self.read(deadline_s))

    async def wait_end(self, request_id: str, deadline_s: float = 20.0) -> SequenceOutput:
        """Read until the request ended, and return its last output."""
        async with asyncio.timeout(deadline_s):
            while not (ended := [output for output in self.outputs(request_id) if output.finish is not None]):
                self._accepted(request_id, await self.read(deadline_s))
        assert len(ended) == 1
        return ended[0]

    def _accepted(self, request_id: str, message: wire.ReplicaMessage) -> None:
        if isinstance(message, wire.Refused):
            assert message.request_id != request_id, message.error.message

    async def read_until_silence(self, silence_s: float) -> None:
        """Returns once nothing came for so long."""
        while True:
            try:
                await self.read(silence_s)
            except TimeoutError:
                return

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs(request_id) for token in output.token_ids]


ConnectRouter = Callable[..., Awaitable[WireClient]]


@pytest.fixture
async def connect_router() -> AsyncIterator[ConnectRouter]:
    """`await connect_router(endpoint)`: a client that said hello; `hello=False` and socket options as keywords."""
    context = zmq.asyncio.Context()

    async def connect(endpoint: str, *, hello: bool = True, router_id: str = "", **options: int) -> WireClient:
        client = WireClient(context, endpoint, router_id or f"router-{next(_names)}", **options)
        if hello:
            await client.hello()
        return client

    yield connect
    context.destroy(linger=0)


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """By name of a fleet: its authority, and a member's certificate and key, as settings."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("making certificates needs the openssl program")

    def make(fleet: str) -> dict[str, str]:
        folder = tmp_path_factory.getbasetemp() / f"tls-{fleet}"
        paths = {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem", "tls_ca": folder / "ca.pem"}
        if not folder.exists():
            folder.mkdir()
            new = [openssl, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
            authority = ["-x509", "-subj", f"/CN={fleet}", "-keyout", "ca.key", "-out", "ca.pem"]
            request = ["-subj", "/CN=member", "-keyout", "key.pem", "-out", "request.pem"]
            sign = [openssl, "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key"]
            for command in (
                new + authority,
                new + request,
                [*sign, "-CAcreateserial", "-days", "2", "-out", "cert.pem"],
            ):
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=30)
        return {name: str(path) for name, path in paths.items()}

    return make

"""A scripted replica on a real loopback socket, in the same event loop as the router and its clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio
from tokenizers import Tokenizer

from contracts import wire
from contracts.batch import PromptLogprobs, TokenLogprobs
from contracts.errors import ErrorInfo
from contracts.kv import Fingerprint, KVLayout
from contracts.phase import Phase, Role
from contracts.replica_io import SequenceOutput, SequenceUsage
from contracts.request import FinishReason, Request
from contracts.views import SLACK_QUANTILES, ReplicaIdentity, ReplicaView, StepCost
from engine.checkpoint.model_files import ModelFiles
from router.app import build_app
from router.config import RouterConfig

EOS = 2


def identity_of(files: ModelFiles, replica_id: str, incarnation: str) -> ReplicaIdentity:
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=incarnation,
        version="test",
        model=files.spec,
        fingerprint=Fingerprint(model_digest=files.spec.digest, layout=layout),
        num_blocks=4096,
        max_running=256,
        max_waiting=256,
    )


class ScriptedReplica:
    """Speaks the wire protocol; every sequence gets `reply(request)` and, if it fits, an end token.

    `pace_s` between outputs, `per_output` tokens in each; with `gate` cleared nothing is produced. It remembers what
    it was told (`submits`, `cancelled`, `leases`) and which sequences are alive (`alive`).
    """

    def __init__(self, files: ModelFiles, tokenizer: Tokenizer, replica_id: str = "r0") -> None:
        self.files = files
        self.tokenizer = tokenizer
        self.identity = identity_of(files, replica_id, "i1")
        self.reply: Callable[[Request], list[int]] = lambda request: tokenizer.encode("Hello world").ids
        self.pace_s = 0.0
        self.per_output = 1
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse_with: ErrorInfo | None = None
        self.fail_after: int | None = None
        self.silent = False
        self.full = False
        self.step_age_s = 0.0
        self.submits: list[Request] = []
        self.cancelled: list[str] = []
        self.leases: list[float] = []
        self.alive: dict[str, asyncio.Task[None]] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._peers: set[bytes] = set()
        self._steps = itertools.count(1)
        self._acked = 0
        self._tasks = [asyncio.ensure_future(part()) for part in (self._serve, self._beat)]

    def say(self, words: str) -> None:
        """From now on every sequence gets this text."""
        self.reply = lambda request: self.tokenizer.encode(words, add_special_tokens=False).ids

    async def close(self) -> None:
        for task in (*self._tasks, *self.alive.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self.alive.values(), return_exceptions=True)
        self._context.destroy(linger=0)

    async def tell(self, message: wire.ReplicaMessage) -> None:
        for peer in self._peers:
            await self._socket.send_multipart([peer, wire.encode(message)])

    async def tell_raw(self, frame: bytes) -> None:
        for peer in self._peers:
            await self._socket.send_multipart([peer, frame])

    def view(self) -> ReplicaView:
        return ReplicaView(
            replica_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            role=Role.MIXED,
            phase=Phase.MIXED,
            draining=False,
            lease_left_s=0.0,
            waiting=0,
            waiting_tokens=0,
            oldest_waiting_s=0.0,
            backlog_s=0.0,
            running=64 if self.full else len(self.alive),
            slack_quantiles_s=tuple(10.0 for _ in SLACK_QUANTILES) if self.alive or self.full else (),
            slack_mean_s=10.0,
            decode_step_s=0.001,
            free_blocks=0 if self.full else 4096,
            num_blocks=4096,
            block_size=16,
            cost=StepCost(a0=1e-3, a1=1e-6, b0=0.0, b1=0.0, b2=0.0, b3=0.0),
            acked_submit_index=self._acked,
            steps_done=next(self._steps),
            step_age_s=self.step_age_s,
        )

    async def _serve(self) -> None:
        while True:
            peer, frame = await self._socket.recv_multipart()
            message = wire.decode_router_message(frame)
            self._peers.add(peer)
            match message:
                case wire.Hello() if not self.silent:
                    welcome = wire.Welcome(identity=self.identity, view=self.view())
                    await self._socket.send_multipart([peer, wire.encode(welcome)])
                case wire.Submit(requests=requests):
                    for request in requests:
                        await self._accept(request)
                case wire.Cancel(request_ids=ids):
                    for sequence_id in ids:
                        self.cancelled.append(sequence_id)
                        if (task := self.alive.pop(sequence_id, None)) is not None:
                            task.cancel()
                case wire.Lease(duration_s=duration_s):
                    self.leases.append(duration_s)
                case _:
                    pass

    async def _accept(self, request: Request) -> None:
        self.submits.append(request)
        self._acked = max(self._acked, request.submit_index)
        if self.refuse_with is not None:
            await self.tell(wire.Refused(request_id=request.request_id, error=self.refuse_with))
            return
        self.alive[request.request_id] = asyncio.ensure_future(self._generate(request))

    async def _generate(self, request: Request) -> None:
        ids = self.reply(request)
        sampling = request.sampling
        ends = None if len(ids) >= sampling.max_tokens else FinishReason.STOP
        if ends and sampling.ignore_eos:
            ids = list(itertools.islice(itertools.cycle(ids), sampling.max_tokens))
            ends = None
        ids = [*ids[: sampling.max_tokens], *([EOS] if ends else [])]
        usage = SequenceUsage(
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=0,
            output_tokens=len(ids),
            queue_s=0.0,
            prefill_s=0.0,
            switch_wait_s=0.0,
            preemptions=0,
        )
        for start in range(len(request.output_token_ids), len(ids), self.per_output):
            await self.gate.wait()
            await asyncio.sleep(self.pace_s)
            if self.fail_after is not None and start >= self.fail_after:
                error = ErrorInfo(status=500, code="engine_failure", message="the step raised")
                await self._produce(
                    SequenceOutput(request_id=request.request_id, finish=FinishReason.ERROR, error=error)
                )
                break
            part = tuple(ids[start : start + self.per_output])
            last = start + self.per_output >= len(ids)
            output = SequenceOutput(
                request_id=request.request_id,
                token_ids=part,
                first_index=start,
                logprobs=tuple(_logprobs(token, sampling.logprobs) for token in part)
                if sampling.logprobs is not None
                else (),
                prompt_logprobs=_prompt_logprobs(request) if start == 0 else (),
                finish=(ends or FinishReason.LENGTH) if last else None,
                stop_token_id=EOS if last and ends else None,
                usage=usage if last else None,
            )
            await self._produce(output)
        self.alive.pop(request.request_id, None)

    async def _produce(self, output: SequenceOutput) -> None:
        await self.tell(wire.Outputs(outputs=(output,)))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if not self.silent:
                await self.tell(wire.Heartbeat(view=self.view()))


def _logprobs(token: int, top: int) -> TokenLogprobs:
    """Made up: the chosen token first, its neighbours behind it."""
    return TokenLogprobs(token, -0.25, tuple((token + i, -0.25 - i) for i in range(top)))


def _prompt_logprobs(request: Request) -> tuple[PromptLogprobs, ...]:
    top = request.sampling.prompt_logprobs
    if top is None:
        return ()
    entries = tuple(_logprobs(token, top) for token in request.prompt_token_ids[1:])
    return (PromptLogprobs(request.request_id, 1, entries),)


@pytest.fixture
async def replica(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[ScriptedReplica]:
    scripted = ScriptedReplica(model_files, tiny_tokenizer)
    yield scripted
    await scripted.close()


@pytest.fixture
async def two_replicas(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[list[ScriptedReplica]]:
    both = [ScriptedReplica(model_files, tiny_tokenizer, f"r{i}") for i in range(2)]
    yield both
    for scripted in both:
        await scripted.close()


@pytest.fixture
async def router(start_router: Any, replica: ScriptedReplica) -> Any:
    """One router over one replica."""
    return await start_router(replica)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    """A client straight into the application, shared by a module whose tests need no sockets of their own.

    Such a module says `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
    """
    scripted = ScriptedReplica(model_files, tiny_tokenizer)
    app = build_app(RouterConfig(model="tiny", replicas=(scripted.endpoint,)), model_files)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(5):
            while app.state.served.fleet.not_ready() is not None:  # noqa: ASYNC110  (nothing sets an event for it)
                await asyncio.sleep(0.01)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as plain:
            plain.app, plain.replica = app, scripted  # type: ignore[attr-defined]
            yield plain
    await scripted.close()


@pytest.fixture
def gated(replica: ScriptedReplica) -> Iterator[ScriptedReplica]:
    """The replica, producing nothing until its gate is set."""
    replica.gate.clear()
    yield replica
    replica.gate.set()

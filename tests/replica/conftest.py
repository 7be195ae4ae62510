"""A replica's shell inside the test: real sockets, a real engine thread, a core and an engine small enough to read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.batch import Batch, Chunk, SampledToken, SequenceStart, StepResult
from contracts.engine import Engine, OnLayerDone
from contracts.errors import EngineFailure, Overloaded, Unavailable
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase, Role
from contracts.prefixes import PrefixChange
from contracts.replica_io import (
    ClientGone,
    DrainRequested,
    Emit,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    RunStep,
    SayDrained,
    SequenceOutput,
    StepDone,
    StepFailed,
)
from contracts.request import FinishReason, Request
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from replica.channel import RouterChannel
from replica.config import LoopConfig
from replica.engine_thread import EngineThread
from replica.loop import ReplicaLoop
from replica.performer import Core
from replica.phases import Phases
from replica.routers import Routers
from replica.shutdown import Shutdown
from replica.transfer import Transfer

SPEC = ModelSpec(
    name="tiny",
    family="llama",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_context=1024,
    tie_word_embeddings=True,
)
LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
IDENTITY = ReplicaIdentity(
    replica_id="r0",
    incarnation="one",
    version="0",
    model=SPEC,
    fingerprint=Fingerprint(model_digest="", layout=LAYOUT),
    num_blocks=64,
    max_running=8,
    max_waiting=8,
)
COST = StepCost(a0=0.0, a1=0.0, b0=0.0, b1=0.0, b2=0.0, b3=0.0)


@dataclass
class TinyEngine:
    """Token i of a sequence is i. `hold` keeps steps from ending; `fail_next` lets one raise."""

    spec: ModelSpec = SPEC
    kv_layout: KVLayout = LAYOUT
    num_blocks: int = 64
    step_s: float = 0.001
    fail_next: bool = False
    fail_always: bool = False
    hold: threading.Event = field(default_factory=threading.Event)
    threads: set[str] = field(default_factory=set)
    closed: bool = False
    kv_memory: memoryview | None = None
    device: str = "tiny"
    numerics: str = ""

    def __post_init__(self) -> None:
        self.hold.set()

    def step(self, batch: Batch, on_layer_done: OnLayerDone | None = None) -> StepResult:
        self.threads.add(threading.current_thread().name)
        assert self.hold.wait(30)
        time.sleep(self.step_s)
        if self.fail_next or self.fail_always:
            self.fail_next = False
            raise EngineFailure("broken on purpose")
        sampled = [SampledToken(c.sequence_id, c.start + len(c.token_ids)) for c in batch.chunks if c.samples]
        return StepResult(step_index=batch.step_index, sampled=tuple(sampled))

    def close(self) -> None:
        self.closed = True


@dataclass
class TinyCore:
    """First come, first served: each step prefills every new request whole and decodes every other one."""

    capacity: int = 8
    waiting: list[Request] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    in_flight: Batch | None = None
    gone: list[str] = field(default_factory=list)
    draining: bool = False
    steps: int = 0
    failed: int = 0
    events: list[ReplicaEvent] = field(default_factory=list)
    prefixes: list[PrefixChange] = field(default_factory=list)
    prefix_changes: list[PrefixChange] = field(default_factory=list)

    def handle(self, event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        self.events.append(event)
        actions: list[ReplicaAction] = []
        match event:
            case RequestArrived(request=request):
                refusal = self._admit(request)
                if refusal is not None:
                    return [Refuse(request.request_id, refusal.info())]
            case ClientGone(request_id=request_id):
                actions += self._end(request_id, FinishReason.CANCELLED)
            case DrainRequested():
                self.draining = True
            case StepDone(result=result):
                self.in_flight = None
                self.steps += 1
                for sampled in result.sampled:
                    actions += self._token(sampled)
            case StepFailed():
                assert self.in_flight is not None
                failed, self.in_flight = self.in_flight, None
                self.failed += 1
                for chunk in failed.chunks:
                    actions += self._end(chunk.sequence_id, FinishReason.ERROR)
        if self.draining and not self.requests and self.in_flight is None:
            actions.append(SayDrained())
        return actions + self._next_step()

    def _admit(self, request: Request) -> Overloaded | Unavailable | None:
        if self.draining:
            return Unavailable("draining")
        if len(self.requests) >= self.capacity:
            return Overloaded("full", retry_after_s=1.0)
        self.requests[request.request_id] = request
        self.waiting.append(request)
        return None

    def _token(self, sampled: SampledToken) -> list[ReplicaAction]:
        request = self.requests.get(sampled.sequence_id)
        if request is None:
            return []
        tokens = self.tokens.setdefault(request.request_id, [])
        tokens.append(sampled.token_id)
        if len(tokens) == request.sampling.max_tokens:
            return self._end(request.request_id, FinishReason.LENGTH, (sampled.token_id,))
        return [Emit((SequenceOutput(request_id=request.request_id, token_ids=(sampled.token_id,)),))]

    def _end(self, request_id: str, finish: FinishReason, token_ids: tuple[int, ...] = ()) -> list[ReplicaAction]:
        if self.requests.pop(request_id, None) is None:
            return []
        self.tokens.pop(request_id, None)
        self.waiting = [request for request in self.waiting if request.request_id != request_id]
        self.gone.append(request_id)
        return [Emit((SequenceOutput(request_id=request_id, token_ids=token_ids, finish=finish),))]

    def _next_step(self) -> list[ReplicaAction]:
        if self.in_flight is not None or not self.requests:
            return []
        chunks = [
            Chunk(
                request_id, (tokens[-1],), len(self.requests[request_id].prompt_token_ids) + len(tokens) - 1, (0,), True
            )
            for request_id, tokens in self.tokens.items()
        ]
        started = [SequenceStart(r.request_id, r.prompt_token_ids, r.sampling) for r in self.waiting]
        chunks += [Chunk(r.request_id, r.prompt_token_ids, 0, (0,), True) for r in self.waiting]
        phase = Phase.MIXED if self.waiting else Phase.DECODE
        self.waiting = []
        ended, self.gone = tuple(self.gone), []
        self.in_flight = Batch(
            step_index=self.steps, phase=phase, chunks=tuple(chunks), started=tuple(started), ended=ended
        )
        return [RunStep(self.in_flight)]

    def take_prefix_changes(self) -> list[PrefixChange]:
        changes, self.prefix_changes = self.prefix_changes, []
        return changes

    def prefix_contents(self) -> list[PrefixChange]:
        return self.prefixes

    def view(self, now: float, replica_id: str, incarnation: str) -> ReplicaView:
        return ReplicaView(
            replica_id=replica_id,
            incarnation=incarnation,
            role=Role.MIXED,
            phase=Phase.MIXED,
            draining=self.draining,
            lease_left_s=0.0,
            waiting=len(self.waiting),
            waiting_tokens=0,
            oldest_waiting_s=0.0,
            backlog_s=0.0,
            running=len(self.requests),
            slack_quantiles_s=(),
            slack_mean_s=0.0,
            decode_step_s=0.0,
            free_blocks=64 - len(self.requests),
            num_blocks=64,
            block_size=16,
            cost=COST,
            acked_submit_index=0,
            steps_done=self.steps,
            step_age_s=0.0,
        )


@dataclass
class LiveReplica:
    """One replica's shell running in the test's event loop."""

    core: Core
    engine: Engine
    loop: ReplicaLoop
    shutdown: Shutdown
    endpoint: str
    task: asyncio.Task[str]

    async def ended(self, deadline_s: float = 10.0) -> str:
        """Wait for its end; why it came."""
        return await asyncio.wait_for(asyncio.shield(self.task), deadline_s)


StartShell = Callable[..., LiveReplica]


@pytest.fixture
async def start_shell() -> AsyncIterator[StartShell]:
    """`start_shell(core=..., engine=..., **loop settings)`. At the end nothing may be left of any of them.

    `identity` and `transfer` come from `replica.data_plane` for a shell that hands over.
    """
    started: list[tuple[LiveReplica, EngineThread, RouterChannel]] = []

    def start(
        *,
        core: Core | None = None,
        engine: Engine | None = None,
        identity: ReplicaIdentity = IDENTITY,
        transfer: Transfer | None = None,
        **settings: Any,
    ) -> LiveReplica:
        config = LoopConfig(**{"heartbeat_s": 0.02, **settings})
        core, engine = core or TinyCore(), engine or TinyEngine()
        channel = RouterChannel("127.0.0.1", 0, queued_messages=config.queued_messages)
        thread = EngineThread("test-engine")
        shutdown = Shutdown()
        routers = Routers(channel, config.max_routers)
        phases = Phases(engine, None if transfer is None else transfer.giver)
        loop = ReplicaLoop(config, identity, core, phases, thread, routers, shutdown, transfer)
        live = LiveReplica(core, engine, loop, shutdown, channel.endpoint, asyncio.create_task(loop.run()))
        started.append((live, thread, channel))
        return live

    yield start
    for live, thread, channel in started:
        live.shutdown.stop("the test is over")
        if isinstance(live.engine, TinyEngine):
            live.engine.hold.set()
        await asyncio.wait([live.task], timeout=10)
        assert live.task.done()
        live.task.exception()  # the test looked at it where it matters
        channel.close()
        assert thread.close(10)
        assert live.loop.routers.sessions.num_requests == 0
        assert live.loop.routers.sessions.all() == []
        if isinstance(live.engine, TinyEngine):
            assert live.engine.threads <= {"test-engine"}
    assert not [thread.name for thread in threading.enumerate() if thread.name == "test-engine"]

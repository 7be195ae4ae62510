"""The asyncio shell around one replica core: messages and step results in, actions performed. No policy.

Three tasks on one event loop: `_receive` (routers), `_step` (the engine's thread), `_tick` (time, heartbeats, silence).
Everything they do to the core is synchronous, so the core never sees two events at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import NoReturn, Protocol

import msgspec

from contracts import wire
from contracts.batch import Batch
from contracts.errors import ErrorInfo, ProtocolError, Unavailable
from contracts.replica_io import (
    ClientGone,
    DrainRequested,
    Emit,
    LeaseGranted,
    LeaseRevoked,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    RunStep,
    SayDrained,
    StepDone,
    StepFailed,
    Woken,
)
from contracts.request import Request
from contracts.views import ReplicaIdentity, ReplicaView
from replica.config import LoopConfig
from replica.engine_thread import EngineLostError, EngineThread
from replica.intake import wrong_request
from replica.phases import Phases
from replica.routers import Routers
from replica.sessions import RouterSession
from replica.shutdown import Shutdown

log = logging.getLogger("phaseserve.replica")


class Core(Protocol):
    """What the loop needs of `scheduling.replica_core.ReplicaCore`."""

    def handle(self, event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        """Take one event, say what to do."""
        ...

    def view(self, now: float, replica_id: str, incarnation: str) -> ReplicaView:
        """A snapshot for the routers."""
        ...


class ReplicaLoop:
    """Runs one replica until it is drained or stopped."""

    def __init__(
        self,
        config: LoopConfig,
        identity: ReplicaIdentity,
        core: Core,
        phases: Phases,
        engine_thread: EngineThread,
        routers: Routers,
        shutdown: Shutdown,
    ) -> None:
        self._config = config
        self._identity = identity
        self._core = core
        self._phases = phases
        self._engine_thread = engine_thread
        self.routers = routers
        self._shutdown = shutdown
        self._failed_in_a_row = 0
        self._running: asyncio.Queue[tuple[Batch, asyncio.Future[StepDone]]] = asyncio.Queue(maxsize=1)
        self._step_began_s: float | None = None
        self._step_overdue = False
        self._changed = asyncio.Event()
        self._drain_until_s: float | None = None
        self._ended = asyncio.Event()
        self._end_reason = ""

    async def run(self) -> str:
        """Serve until the end and say why it came. Raises what broke the loop; routers were told either way."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part()) for part in (self._receive, self._step, self._tick)]
                await self._ended.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self.routers.leave(self._end_reason or "internal error")
        return self._end_reason

    async def _receive(self) -> None:
        while True:
            identity, frame = await self.routers.channel.receive()
            try:
                message = wire.decode_router_message(frame)
            except ProtocolError as error:
                self.routers.count_bad_message(error)
                continue
            self._on_message(identity, message)
            self._cancel_abandoned()

    async def _step(self) -> None:
        while True:
            batch, step = await self._running.get()
            event: ReplicaEvent
            try:
                event = await step
                self._failed_in_a_row = 0
            except Exception as error:  # the boundary to the engine: it becomes a named event
                self._failed_in_a_row += 1
                log.error("step %d failed", batch.step_index, exc_info=error)
                event = StepFailed(batch.step_index, f"{type(error).__name__}: {error}")
            self._step_began_s = None
            self._step_overdue = False
            self._feed(event)
            self._cancel_abandoned()
            if self._failed_in_a_row >= self._config.max_failed_steps:
                self._lose_engine(f"{self._failed_in_a_row} engine steps failed in a row")

    async def _tick(self) -> None:
        period_s = self._config.heartbeat_s
        due_s = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= due_s:
                self._check_routers(now, late_s=now - due_s)
                self._check_engine(now)
                self._feed(Woken())
                due_s = now + period_s
            self._check_shutdown(now)
            self._changed.clear()
            self.routers.broadcast(self._view())
            self._cancel_abandoned()
            await asyncio.sleep(
                period_s / 2
            )  # at most two views a heartbeat: each costs router and replica a part of a step
            await _wait_set(self._changed, due_s - time.monotonic())

    # --- what routers say

    def _on_message(self, identity: bytes, message: wire.RouterMessage) -> None:
        if isinstance(message, wire.Hello):
            self._on_hello(identity, message)
            return
        session = self.routers.sessions.at(identity)
        if session is None:
            self.routers.answer_stranger(identity, message)
            return
        session.heard_s = time.monotonic()
        match message:
            case wire.Submit(requests=requests):
                error = self._submit(session, requests)
                if error is not None:
                    for request in requests:
                        self.routers.send(session, wire.Refused(request_id=request.request_id, error=error))
            case wire.Cancel(request_ids=request_ids):
                for request_id in request_ids:
                    if (core_id := session.requests.get(request_id)) is not None:
                        self._feed(ClientGone(core_id))
            case wire.Lease(duration_s=duration_s):
                self._feed(LeaseGranted(duration_s) if duration_s > 0 else LeaseRevoked())
            case wire.Drain():
                if not self._shutdown.draining:
                    self._shutdown.drain(f"router {session.router_id} asked for it")
            case wire.Ping():
                pass

    def _on_hello(self, identity: bytes, hello: wire.Hello) -> None:
        session = self.routers.join(identity, hello, time.monotonic())
        if session is not None:
            self.routers.welcome(session, self._identity, self._view())
            self.routers.end_earlier(session)

    def _submit(self, session: RouterSession, requests: tuple[Request, ...]) -> ErrorInfo | None:
        """All sequences are accepted together (None), or none of them (why)."""
        session.acked_submit_index = max(session.acked_submit_index, *(request.submit_index for request in requests), 0)
        wrong = wrong_request(requests, session.requests, self._identity.model.vocab_size)
        if wrong is not None:
            return wrong.info()
        if self._step_overdue:
            return Unavailable("the engine's step is overdue", retry_after_s=self._config.step_overdue_s).info()
        accepted: list[str] = []
        for request in requests:
            core_id = self.routers.sessions.claim(session, request.request_id)
            arrived = RequestArrived(msgspec.structs.replace(request, request_id=core_id))
            actions = self._core.handle(arrived, time.monotonic())
            refusals = [action for action in actions if isinstance(action, Refuse) and action.request_id == core_id]
            self._perform([action for action in actions if action not in refusals])
            if refusals:
                for claimed in (*accepted, core_id):
                    self.routers.sessions.release(claimed)
                for earlier in accepted:
                    self._feed(ClientGone(earlier))
                return refusals[0].error
            accepted.append(core_id)
        return None

    # --- what the core says

    def _feed(self, event: ReplicaEvent) -> None:
        self._perform(self._core.handle(event, time.monotonic()))

    def _perform(self, actions: list[ReplicaAction]) -> None:
        """In the core's order: it puts the next step first, so the engine works while the last outputs are sent."""
        for action in actions:
            match action:
                case RunStep(batch=batch):
                    self._step_began_s = time.monotonic()
                    step = self._engine_thread.call(partial(self._phases.run, batch))
                    self._running.put_nowait((batch, step))
                case Emit(outputs=outputs):
                    self.routers.send_outputs(outputs)
                case Refuse(request_id=core_id, error=error):
                    self.routers.refuse(core_id, error)
                case SayDrained():
                    self._end(f"drained ({self._shutdown.reason})")
        if actions:
            self._changed.set()

    def _cancel_abandoned(self) -> None:
        """Cancel the work of routers that were given up; sending its end may give up further ones."""
        abandoned = self.routers.abandoned
        while abandoned:
            self._feed(ClientGone(abandoned.pop()))

    def _view(self) -> ReplicaView:
        view = self._core.view(time.monotonic(), self._identity.replica_id, self._identity.incarnation)
        rows = self._phases.rows_computed()
        return msgspec.structs.replace(view, prompt_tokens_computed=rows.prompt, output_tokens_computed=rows.output)

    # --- time

    def _check_routers(self, now: float, late_s: float) -> None:
        """Give up routers that fell silent. When it was us who stood still, their messages are still to be read.

        Their requests are cancelled after the goodbye and unseen by them: a router that comes back learns that it lost
        this replica, not that its clients, who may well be there, have left.
        """
        limit_s = self._config.router_silence_s
        if late_s > limit_s / 2:
            log.warning("stood still for %.1f s", late_s)
            for session in self.routers.sessions.all():
                session.heard_s = now
        for session in self.routers.sessions.silent(now, limit_s):
            self.routers.counters.silent += 1
            self.routers.goodbye(session.identity, f"silent for {limit_s:g} s: say hello again")
            self.routers.give_up(session, f"silent for {limit_s:g} s")

    def _check_engine(self, now: float) -> None:
        if self._step_began_s is None:
            return
        age_s = now - self._step_began_s
        if age_s > self._config.step_deadline_s:
            self._lose_engine(f"an engine step did not end within {self._config.step_deadline_s:g} s")
        if age_s > self._config.step_overdue_s and not self._step_overdue:
            self._step_overdue = True
            log.error("the engine's step runs for %.1f s: nothing new is accepted until it ends", age_s)

    def _lose_engine(self, reason: str) -> NoReturn:
        self._end_reason = reason
        raise EngineLostError(reason)

    def _check_shutdown(self, now: float) -> None:
        if self._shutdown.stopping:
            self._end(f"stopped ({self._shutdown.reason})")
        elif self._drain_until_s is not None:
            if now > self._drain_until_s:
                self._end(f"not drained within {self._config.drain_deadline_s:g} s ({self._shutdown.reason})")
        elif self._shutdown.draining:
            self._drain_until_s = now + self._config.drain_deadline_s
            self._feed(DrainRequested())

    def _end(self, reason: str) -> None:
        if not self._ended.is_set():
            self._end_reason = reason
            self._ended.set()


async def _wait_set(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for `event`, at most `timeout_s`."""
    if timeout_s <= 0 or event.is_set():
        return
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return

"""The asyncio shell around one replica core: messages, transfers and step results in, actions performed. No policy.

Four tasks on one event loop: `_receive` (routers), `_step` (the engine's thread), `_take_transfers` (the transfer
service's thread), `_tick` (time, heartbeats, silence). Everything they do to the core is synchronous, by
`replica.performer`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NoReturn

from contracts import wire
from contracts.errors import ProtocolError, Unavailable
from contracts.replica_io import DrainRequested, ReplicaEvent, StepFailed, Woken
from contracts.views import ReplicaIdentity, ReplicaView
from kvtransfer.protocol import TransferError
from replica.config import LoopConfig
from replica.engine_thread import EngineLostError, EngineThread
from replica.performer import Core, Performer
from replica.phases import Phases
from replica.prefix_news import PrefixNews
from replica.requests import Requests
from replica.routers import Routers
from replica.shutdown import Shutdown
from replica.transfer import Transfer

log = logging.getLogger("phaseserve.replica")

RENEW_S = 0.5


class ReplicaLoop:
    """Runs one replica until it is drained or stopped. `transfer` is None where KV can neither be given nor taken."""

    def __init__(
        self,
        config: LoopConfig,
        identity: ReplicaIdentity,
        core: Core,
        phases: Phases,
        engine_thread: EngineThread,
        routers: Routers,
        shutdown: Shutdown,
        transfer: Transfer | None = None,
    ) -> None:
        self._config = config
        self._identity = identity
        self.routers = routers
        self._shutdown = shutdown
        self._transfer = transfer
        handoffs = None if transfer is None else transfer.handoffs
        self._performer = Performer(core, phases, engine_thread, routers, handoffs, self._drained)
        self._requests = Requests(identity, self._performer, routers, handoffs, shutdown, self._view, self._refuses)
        self._prefix_news = PrefixNews(core, routers, identity.num_blocks)
        self._failed_in_a_row = 0
        self._step_overdue = False
        self._renew_at_s = 0.0
        self._drain_until_s: float | None = None
        self._ended = asyncio.Event()
        self._end_reason = ""

    def stalled(self) -> str | None:
        """None while there is progress, else why not."""
        began_s = self._performer.step_began_s
        if began_s is None or time.monotonic() - began_s <= self._config.step_overdue_s:
            return None
        return f"the engine's step runs for {time.monotonic() - began_s:.1f} s"

    def not_ready(self) -> str | None:
        """None while a new request would be accepted, else why not."""
        if self._shutdown.draining or self._shutdown.stopping or self._ended.is_set():
            return f"on its way out ({self._shutdown.reason})"
        if self._transfer is not None and not self._transfer.running():
            return "the data plane is gone"
        return self.stalled()

    async def run(self) -> str:
        """Serve until the end and say why it came. Raises what broke the loop; routers were told either way."""
        parts = [self._receive, self._step, self._tick]
        if self._transfer is not None:
            parts.append(self._take_transfers)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part()) for part in parts]
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
            self._requests.on_message(identity, message)
            self._performer.cancel_abandoned()

    async def _step(self) -> None:
        while True:
            batch, step = await self._performer.running.get()
            event: ReplicaEvent
            try:
                event = await step
                self._failed_in_a_row = 0
            except Exception as error:  # the boundary to the engine: it becomes a named event
                self._failed_in_a_row += 1
                log.error("step %d failed", batch.step_index, exc_info=error)
                event = StepFailed(batch.step_index, f"{type(error).__name__}: {error}")
            self._performer.step_began_s = None
            self._step_overdue = False
            self._performer.feed(event)
            self._performer.cancel_abandoned()
            if self._failed_in_a_row >= self._config.max_failed_steps:
                self._lose_engine(f"{self._failed_in_a_row} engine steps failed in a row")

    async def _take_transfers(self) -> None:
        assert self._transfer is not None
        while True:
            for event in await self._transfer.inbox.take():
                told = self._transfer.handoffs.event(event)
                if told is not None:
                    self._performer.feed(told)
            self._performer.cancel_abandoned()
            await asyncio.sleep(0)  # a flood of words must not keep the other tasks from running

    async def _tick(self) -> None:
        period_s = self._config.heartbeat_s
        changed = self._performer.changed
        due_s = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= due_s:
                self._check_routers(now, late_s=now - due_s)
                self._check_engine(now)
                self._check_transfer()
                self._performer.feed(Woken())
                self._prefix_news.tell()
                due_s = now + period_s
            self._check_shutdown(now)
            changed.clear()
            view = self._view()
            self.routers.broadcast(view)
            self._renew(view, now)
            self._performer.cancel_abandoned()
            # At most two views a heartbeat: each costs router and replica a part of a step.
            await asyncio.sleep(period_s / 2)
            await _wait_set(changed, due_s - time.monotonic())

    def _view(self) -> ReplicaView:
        return self._performer.view(self._identity.replica_id, self._identity.incarnation)

    def _refuses(self) -> Unavailable | None:
        if self._step_overdue:
            return Unavailable("the engine's step is overdue", retry_after_s=self._config.step_overdue_s)
        return None

    def _renew(self, view: ReplicaView, now: float) -> None:
        """Those who wait for KV from here hear that it is still to come: all that is accepted is computed by then."""
        if self._transfer is not None and now >= self._renew_at_s and not self._step_overdue:
            self._renew_at_s = now + RENEW_S
            self._transfer.handoffs.renew(view.backlog_s)

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
        began_s = self._performer.step_began_s
        if began_s is None:
            return
        age_s = now - began_s
        if age_s > self._config.step_deadline_s:
            self._lose_engine(f"an engine step did not end within {self._config.step_deadline_s:g} s")
        if age_s > self._config.step_overdue_s and not self._step_overdue:
            self._step_overdue = True
            log.error("the engine's step runs for %.1f s: nothing new is accepted until it ends", age_s)

    def _check_transfer(self) -> None:
        """Without it no stop is ever answered, and blocks would stay held for good."""
        if self._transfer is not None and not self._transfer.running():
            self._end_reason = "the data plane is gone"
            raise TransferError(self._end_reason)

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
            self._performer.feed(DrainRequested())

    def _drained(self) -> None:
        self._end(f"drained ({self._shutdown.reason})")

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

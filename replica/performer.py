"""Between the core and everything it acts on: events in, the core's actions performed in its own order. No policy.

Synchronous, on the event loop: the core never sees two events at once. What an action answers at once is the core's
next event.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from contracts import wire
from contracts.batch import Batch
from contracts.errors import ErrorInfo
from contracts.prefixes import PrefixChange
from contracts.replica_io import (
    ClientGone,
    CommitKV,
    Emit,
    KVClosed,
    ProbeLink,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    ReserveKV,
    RunStep,
    SayDrained,
    SendKV,
    StepDone,
    StopKV,
)
from contracts.request import Request
from contracts.views import ReplicaView
from replica.engine_thread import EngineThread
from replica.handoffs import Handoffs
from replica.phases import Phases
from replica.routers import Routers


class Core(Protocol):
    """What is needed of `scheduling.replica_core.ReplicaCore`."""

    def handle(self, event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        """Take one event, say what to do."""
        ...

    def view(self, now: float, replica_id: str, incarnation: str) -> ReplicaView:
        """A snapshot for the routers."""
        ...

    def take_prefix_changes(self) -> list[PrefixChange]:
        """What changed in the prefix cache since this was last asked."""
        ...

    def prefix_contents(self) -> list[PrefixChange]:
        """All that the prefix cache holds."""
        ...


class Performer:
    """`handoffs` is None where KV can neither be given nor taken. `on_drained` is called once nothing is left.

    `changed` is set whenever the core said anything; `running` holds the step in flight for whoever waits for it.
    """

    def __init__(
        self,
        core: Core,
        phases: Phases,
        engine_thread: EngineThread,
        routers: Routers,
        handoffs: Handoffs | None,
        on_drained: Callable[[], None],
    ) -> None:
        self._core = core
        self._phases = phases
        self._engine_thread = engine_thread
        self._routers = routers
        self._handoffs = handoffs
        self._on_drained = on_drained
        self.running: asyncio.Queue[tuple[Batch, asyncio.Future[StepDone]]] = asyncio.Queue(maxsize=1)
        self.step_began_s: float | None = None
        self.changed = asyncio.Event()

    def feed(self, event: ReplicaEvent) -> None:
        """Tell the core, do what it says."""
        events = deque([event])
        while events:
            actions = self._core.handle(events.popleft(), time.monotonic())
            events.extend(self._perform(actions))

    def offer(self, request: Request) -> ErrorInfo | None:
        """A new request; the core's refusal is returned instead of sent."""
        actions = self._core.handle(RequestArrived(request), time.monotonic())
        refusals = [
            action for action in actions if isinstance(action, Refuse) and action.request_id == request.request_id
        ]
        for answer in self._perform([action for action in actions if action not in refusals]):
            self.feed(answer)
        return refusals[0].error if refusals else None

    def cancel_abandoned(self) -> None:
        """Cancel the work of routers that were given up; sending its end may give up further ones."""
        abandoned = self._routers.abandoned
        while abandoned:
            self.feed(ClientGone(abandoned.pop()))

    def view(self, replica_id: str, incarnation: str) -> ReplicaView:
        """The core's snapshot, with what only its body counts."""
        view = self._core.view(time.monotonic(), replica_id, incarnation)
        rows = self._phases.rows_computed()
        return msgspec.structs.replace(view, prompt_tokens_computed=rows.prompt, output_tokens_computed=rows.output)

    def _perform(self, actions: list[ReplicaAction]) -> list[ReplicaEvent]:
        """In the core's order: it puts the next step first, so the engine works while the last outputs are sent."""
        answers: list[ReplicaEvent] = []
        for action in actions:
            match action:
                case RunStep(batch=batch):
                    self.step_began_s = time.monotonic()
                    step = self._engine_thread.call(partial(self._phases.run, batch))
                    self.running.put_nowait((batch, step))
                case Emit(outputs=outputs):
                    self._routers.send_outputs(outputs)
                    self._forget_ended(action)
                case Refuse(request_id=core_id, error=error):
                    self._routers.refuse(core_id, error)
                case SayDrained():
                    self._on_drained()
                case ReserveKV() | SendKV() | CommitKV() | StopKV() | ProbeLink():
                    answer = self._hand_over(action)
                    if answer is not None:
                        answers.append(answer)
        if actions:
            self.changed.set()
        return answers

    def _hand_over(self, action: ReserveKV | SendKV | CommitKV | StopKV | ProbeLink) -> ReplicaEvent | None:
        handoffs = self._handoffs
        if isinstance(action, StopKV):
            return KVClosed(action.request_id) if handoffs is None else handoffs.stop(action)
        assert handoffs is not None, f"{action} without a transfer service"
        match action:
            case ReserveKV():
                ticket = handoffs.reserve(action)
                owner = self._routers.sessions.owner(action.request_id)
                if owner is not None:
                    self._routers.send(owner[0], wire.Reserved(request_id=owner[1], ticket=ticket))
            case SendKV():
                handoffs.send(action)
            case CommitKV():
                handoffs.commit(action)
            case ProbeLink():
                handoffs.probe(action)
        return None

    def _forget_ended(self, emit: Emit) -> None:
        if self._handoffs is not None:
            for output in emit.outputs:
                if output.finish is not None:
                    self._handoffs.ended(output.request_id)

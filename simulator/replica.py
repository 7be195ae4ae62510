"""One simulated replica process: the real `ReplicaCore`, an engine that is only a duration, the wire to a router.

It does what `replica.loop` and `replica.performer` do live: one step at a time, actions in the core's order, at most
two views a heartbeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from contracts.batch import Batch
from contracts.handoff import Peer, PrefillLeg
from contracts.phase import Phase, Role
from contracts.replica_io import (
    ClientGone,
    CommitKV,
    DrainRequested,
    Emit,
    LeaseGranted,
    LeaseRevoked,
    ProbeLink,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    ReserveKV,
    RoleAssigned,
    RunStep,
    SayDrained,
    SendKV,
    SequenceOutput,
    StepDone,
    StopKV,
    Woken,
)
from contracts.request import Request
from contracts.views import ReplicaView
from scheduling.coasting import go_on, unmoved_by_time
from scheduling.replica_core import ReplicaCore
from simulator.clock import Clock
from simulator.coast import Coaster
from simulator.engine import SimulatedEngine
from simulator.peer_connections import PeerConnections
from simulator.replica_parts import ReplicaParts
from simulator.transfers import MOVING_S, DataPlane
from simulator.wire import Wire
from simulator.workload import EOS, FILLER


class SimulatedReplica:
    """One process from start to end; a restart makes another one. Implements `simulator.transfers.Body`."""

    def __init__(self, parts: ReplicaParts, clock: Clock, plane: DataPlane, wire: Wire) -> None:
        self.parts = parts
        self.replica_id = parts.identity.replica_id
        self.incarnation = parts.identity.incarnation
        self.alive = True
        self.engine = SimulatedEngine(parts.steps)
        self.started_at = clock.now
        self.ended_at: float | None = None
        self.core = ReplicaCore(
            parts.config,
            parts.role,
            parts.layout,
            parts.identity.num_blocks,
            parts.identity.model.max_context,
            (EOS,),
            parts.believed,
        )
        self._clock = clock
        self._plane = plane
        self._wire = wire
        self._connections = PeerConnections(parts.identity, clock, plane, self.hear)
        self._frozen_until = -1.0
        self._kept: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._changed = False
        self._streams: list[str] = []
        self._waits_for_change = False
        self._told_prefixes = False
        self._due_at = clock.now
        self._tick_version = 0
        self._renew_at = 0.0
        self._coaster = Coaster(self.engine, self.core, clock, parts.turn_s, self._step_done, self._went_on)
        self._tick(0)

    # --- what the router says

    def submit(self, request: Request, ends_at: int) -> None:
        """A new request; its output ends with the token at position `ends_at` (prompt counted)."""
        if isinstance(request.leg, PrefillLeg):
            self._plane.accepted(self, request.request_id, request.leg.ticket)
        self.engine.expect(request.request_id, ends_at)
        self.hear(RequestArrived(request))

    def cancel(self, sequence_id: str) -> None:
        """Nobody waits for it any more."""
        self.hear(ClientGone(sequence_id))

    def lease(self, duration_s: float) -> None:
        """Prefill is allowed for so long; 0 revokes."""
        self.hear(LeaseGranted(duration_s) if duration_s > 0.0 else LeaseRevoked())

    def assign(self, role: Role) -> None:
        """Have this role from now on."""
        self.hear(RoleAssigned(role))

    def drain(self) -> None:
        """Take nothing new, finish, leave."""
        self.hear(DrainRequested())

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """The replicas that KV may be sent to from now on: links to new ones come up after a handshake."""
        if self._is_frozen(self.set_peers, peers):
            return
        self._connections.set_peers(peers)

    # --- life

    def connect(self, wire: Wire) -> None:
        """A new connection, perhaps to another router: it has yet to hear what is cached here."""
        self._coaster.catch_up()
        self._wire = wire
        self._told_prefixes = False

    def say_on(self) -> None:
        """Tell what came of the steps so far."""
        self._coaster.catch_up()

    def kill(self) -> None:
        """The process is gone at once."""
        self._coaster.end()
        self._end()
        self._plane.lost(self)

    def _end(self) -> None:
        self.alive = False
        self.ended_at = self._clock.now

    def freeze(self, duration_s: float) -> None:
        """Nothing is heard or said for so long; then everything that came meanwhile."""
        self._coaster.end()
        self._frozen_until = max(self._frozen_until, self._clock.now + duration_s)
        self._clock.at(self._frozen_until, self._thaw)

    def _thaw(self) -> None:
        kept, self._kept = self._kept, deque()
        for act, args in kept:
            if self.alive:
                act(*args)

    def _is_frozen(self, act: Callable[..., None], *args: Any) -> bool:
        if self._clock.now < self._frozen_until:
            self._kept.append((act, args))
            return True
        return False

    @property
    def frozen(self) -> bool:
        """Whether nothing is heard or said now."""
        return self._clock.now < self._frozen_until

    def stands_still(self, since_s: float) -> bool:
        """Whether it is frozen, or has been in one step since then."""
        step = self.core.state.in_flight
        return self.frozen or (step is not None and step.started_at <= since_s)

    def forget(self, request_ids: Sequence[str]) -> None:
        """The router that asked for these is gone, or has lost us."""
        for request_id in request_ids:
            self.hear(ClientGone(request_id))

    def view(self) -> ReplicaView:
        """The core's own."""
        self._coaster.catch_up()
        return self.core.view(self._clock.now, self.replica_id, self.incarnation)

    # --- the core

    def hear(self, event: ReplicaEvent) -> None:
        """The core's next event; its actions are performed in its order."""
        if not self.alive or self._is_frozen(self.hear, event):
            return
        self._coaster.catch_up()
        actions = self.core.handle(event, self._clock.now)
        self._coaster.heard(event, acted=bool(actions))
        if actions or self._streams:
            self._changed = True
            for action in actions:
                self._perform(action)
            if self._waits_for_change:
                self._waits_for_change = False
                self._tick_version += 1
                self._clock.at(self._clock.now, self._tick, self._tick_version)

    def _perform(self, action: ReplicaAction) -> None:
        plane = self._plane
        match action:
            case RunStep(batch):
                self._run(batch)
            case Emit(outputs):
                for output in outputs:
                    if output.finish is not None:
                        self.engine.forget(output.request_id)
                        plane.forget(self, output.request_id)
                self._say(outputs)
            case Refuse(request_id, error):
                self.engine.forget(request_id)
                plane.forget(self, request_id)
                self._wire.refused(self, request_id, error)
            case ReserveKV():
                self._wire.reserved(self, action.request_id, plane.reserve(self, action, self.parts.layout))
            case SendKV():
                plane.send(self, action)
            case CommitKV():
                plane.commit(self, action)
            case StopKV():
                plane.stop(self, action)
            case ProbeLink():
                plane.probe(self, action)
            case SayDrained():
                self._wire.left(self, "drained")
                self._end()

    def _say(self, outputs: tuple[SequenceOutput, ...]) -> None:
        streams, self._streams = self._streams, []
        self._wire.produced(self, outputs, streams)

    def _run(self, batch: Batch) -> None:
        if self.parts.timeline is None and self._coaster.begin(batch):
            return
        after_s, duration_s = self.engine.run(batch, self._clock.now)
        if self.parts.timeline is not None:
            self.parts.timeline.ran(self.replica_id, self._clock.now, after_s, batch.phase)
        if batch.phase is not Phase.DECODE and len(self._plane):
            for chunk in batch.chunks:
                end = chunk.start + len(chunk.token_ids)
                self._plane.step_began(self, chunk.sequence_id, chunk.start, end, after_s)
        self._clock.after(after_s + self.parts.turn_s, self._step_done, batch, duration_s)

    def _step_done(self, batch: Batch, duration_s: float) -> None:
        if not self.alive or self._is_frozen(self._step_done, batch, duration_s):
            return
        if batch.phase is not Phase.PREFILL:
            self._streams = go_on(self.core.state, self.engine.ends_at, FILLER)
            if self._streams:
                assert self.core.state.in_flight is not None
                batch = self.core.state.in_flight.batch
        self.hear(StepDone(self.engine.result(batch), duration_s))
        if self._streams:  # no stream had more to tell
            self._say(())

    def _went_on(self, sequence_ids: Sequence[str], ended_at: Sequence[float]) -> None:
        self._changed = True
        self._wire.went_on(self, sequence_ids, ended_at)

    # --- views, as `replica.loop.ReplicaLoop._tick`

    def _tick(self, version: int) -> None:
        if not self.alive or version != self._tick_version or self._is_frozen(self._tick, version):
            return
        now, period_s = self._clock.now, self.parts.heartbeat_s
        self._waits_for_change = False
        self._coaster.catch_up()
        if now >= self._due_at:
            if not unmoved_by_time(self.core.state, now):
                self.hear(Woken())
            self._tell_prefixes()
            self._due_at = now + period_s
        view = self.core.view(now, self.replica_id, self.incarnation)
        self._changed = False
        self._wire.viewed(self, view)
        if now >= self._renew_at and len(self._plane):
            self._renew_at = now + MOVING_S
            self._plane.renew(self, view.backlog_s)
        self._clock.after(period_s / 2, self._rested)

    def _tell_prefixes(self) -> None:
        """The router hears what the prefix cache holds: everything once, from then on what changes."""
        if not self.parts.config.prefix_cache:
            return
        changes = self.core.take_prefix_changes()
        if not self._told_prefixes:
            self._told_prefixes = True
            changes = self.core.prefix_contents()
        for change in changes:
            self._wire.cached(self, change)

    def _rested(self) -> None:
        """Half a heartbeat has passed: a view now if anything has changed, else when something does or it is due."""
        self._coaster.catch_up()
        if self._changed:
            self._tick(self._tick_version)
        elif self.alive:
            self._waits_for_change = True
            self._coaster.end()
            self._clock.at(self._due_at, self._tick, self._tick_version)

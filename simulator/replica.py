"""One simulated replica process: the real `ReplicaCore`, an engine that is only a duration, the wire to a router.

It does what `replica.loop` and `replica.performer` do live: one step at a time, actions in the core's order, at most
two views a heartbeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contracts.batch import Batch, Chunk, SampledToken, StepResult
from contracts.errors import ErrorInfo
from contracts.handoff import KVTicket, Peer, PrefillLeg
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase, Role
from contracts.replica_io import (
    ClientGone,
    CommitKV,
    DrainRequested,
    Emit,
    LeaseGranted,
    LeaseRevoked,
    LinkDown,
    LinkUp,
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
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_core import ReplicaCore
from scheduling.step_shape import StepShape
from simulator.clock import Clock
from simulator.cost import NoisySteps
from simulator.transfers import MOVING_S, TRANSPORT, DataPlane
from simulator.workload import EOS, FILLER


class Wire(Protocol):
    """What a replica says to its router; each message arrives later, in order."""

    def produced(self, body: SimulatedReplica, outputs: tuple[SequenceOutput, ...]) -> None: ...
    def refused(self, body: SimulatedReplica, sequence_id: str, error: ErrorInfo) -> None: ...
    def reserved(self, body: SimulatedReplica, sequence_id: str, ticket: KVTicket) -> None: ...
    def viewed(self, body: SimulatedReplica, view: ReplicaView) -> None: ...
    def left(self, body: SimulatedReplica, reason: str) -> None: ...


@dataclass(slots=True)
class Work:
    """What the engine did: steps and busy seconds by phase, rows computed."""

    steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def busy_s(self) -> float:
        """All phases together."""
        return self.prefill_s + self.decode_s + self.mixed_s


@dataclass(frozen=True, slots=True)
class Machine:
    """What a replica process is made of."""

    identity: ReplicaIdentity
    role: Role
    config: ReplicaCoreConfig
    layout: KVLayout
    believed: StepCost
    steps: NoisySteps
    heartbeat_s: float


class SimulatedReplica:
    """One process from start to end; a restart makes another one. Implements `simulator.transfers.Body`."""

    def __init__(self, machine: Machine, clock: Clock, plane: DataPlane, wire: Wire) -> None:
        self.machine = machine
        self.replica_id = machine.identity.replica_id
        self.incarnation = machine.identity.incarnation
        self.alive = True
        self.work = Work()
        self.started_at = clock.now
        self.ended_at: float | None = None
        self.core = ReplicaCore(
            machine.config,
            machine.role,
            machine.layout,
            machine.identity.num_blocks,
            machine.identity.model.max_context,
            (EOS,),
            machine.believed,
        )
        self._clock = clock
        self._plane = plane
        self._wire = wire
        self._ends_at: dict[str, int] = {}
        self._peers: dict[str, Peer] = {}
        self._frozen_until = -1.0
        self._kept: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._changed = False
        self._waits_for_change = False
        self._due_at = clock.now
        self._tick_version = 0
        self._renew_at = 0.0
        self._tick(0)

    # --- what the router says

    def submit(self, request: Request, ends_at: int) -> None:
        """A new request; its output ends with the token at position `ends_at` (prompt counted)."""
        if isinstance(request.leg, PrefillLeg):
            self._plane.accepted(self, request.request_id, request.leg.ticket)
        self._ends_at[request.request_id] = ends_at
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
        named = {peer.replica_id: peer for peer in peers if peer.replica_id != self.replica_id}
        for replica_id, peer in list(self._peers.items()):
            if named.get(replica_id) != peer:
                del self._peers[replica_id]
                self.hear(LinkDown(replica_id, peer.incarnation, "the router no longer names it"))
        for replica_id, peer in named.items():
            if replica_id not in self._peers:
                self._peers[replica_id] = peer
                self._clock.after(4.0 * self._plane.network.latency_s, self._link_up, peer)

    def _link_up(self, peer: Peer) -> None:
        if not self.alive or self._peers.get(peer.replica_id) is not peer:
            return
        mine, theirs = self.machine.identity.fingerprint, peer.fingerprint
        if mine != theirs:
            self.hear(LinkDown(peer.replica_id, peer.incarnation, f"fingerprints differ: {mine} and {theirs}"))
            return
        latency_s = self._plane.network.latency_s
        self.hear(LinkUp(peer.replica_id, peer.incarnation, TRANSPORT, TRANSPORT, latency_s))

    # --- life

    def connect(self, wire: Wire) -> None:
        """Another router is the one to speak to."""
        self._wire = wire

    def kill(self) -> None:
        """The process is gone at once."""
        self._end()
        self._plane.lost(self)

    def _end(self) -> None:
        self.alive = False
        self.ended_at = self._clock.now

    def freeze(self, duration_s: float) -> None:
        """Nothing is heard or said for so long; then everything that came meanwhile."""
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

    def forget(self, request_ids: Sequence[str]) -> None:
        """The router that asked for these is gone, or has lost us."""
        for request_id in request_ids:
            self.hear(ClientGone(request_id))

    def view(self) -> ReplicaView:
        """The core's own."""
        return self.core.view(self._clock.now, self.replica_id, self.incarnation)

    # --- the core

    def hear(self, event: ReplicaEvent) -> None:
        """The core's next event; its actions are performed in its order."""
        if not self.alive or self._is_frozen(self.hear, event):
            return
        actions = self.core.handle(event, self._clock.now)
        if actions:
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
                        self._ends_at.pop(output.request_id, None)
                        plane.forget(self, output.request_id)
                self._wire.produced(self, outputs)
            case Refuse(request_id, error):
                self._ends_at.pop(request_id, None)
                plane.forget(self, request_id)
                self._wire.refused(self, request_id, error)
            case ReserveKV():
                self._wire.reserved(self, action.request_id, plane.reserve(self, action, self.machine.layout))
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

    def _run(self, batch: Batch) -> None:
        work = self.work
        shape = StepShape()
        if batch.phase is Phase.DECODE:
            chunks = batch.chunks
            shape.add_decodes(len(chunks), sum([chunk.start for chunk in chunks]) + len(chunks))
            duration_s = self.machine.steps.step_s(shape)
            work.decode_s += duration_s
        else:
            prefills = []
            for chunk in batch.chunks:
                size = len(chunk.token_ids)
                if size == 1 and chunk.start > 0 and chunk.samples:
                    shape.add_decodes(1, chunk.start + 1)
                else:
                    shape.add_prefill(chunk.start, size)
                    prefills.append(chunk)
            duration_s = self.machine.steps.step_s(shape)
            if batch.phase is Phase.PREFILL:
                work.prefill_s += duration_s
            else:
                work.mixed_s += duration_s
            if len(self._plane):
                for chunk in prefills:
                    end = chunk.start + len(chunk.token_ids)
                    self._plane.step_began(self, chunk.sequence_id, chunk.start, end, duration_s)
        work.steps += 1
        work.output_tokens += shape.decodes
        work.prompt_tokens += shape.tokens - shape.decodes
        self._clock.after(duration_s, self._step_done, batch, duration_s)

    def _step_done(self, batch: Batch, duration_s: float) -> None:
        if not self.alive or self._is_frozen(self._step_done, batch, duration_s):
            return
        sampled = tuple([self._sample(chunk) for chunk in batch.chunks if chunk.samples])
        self.hear(StepDone(StepResult(step_index=batch.step_index, sampled=sampled), duration_s))

    def _sample(self, chunk: Chunk) -> SampledToken:
        """The engine alone knows how long the answer is."""
        ends_at = self._ends_at.get(chunk.sequence_id)
        last = ends_at is None or chunk.start + len(chunk.token_ids) >= ends_at
        return SampledToken(chunk.sequence_id, EOS if last else FILLER)

    # --- views, as `replica.loop.ReplicaLoop._tick`

    def _tick(self, version: int) -> None:
        if not self.alive or version != self._tick_version or self._is_frozen(self._tick, version):
            return
        now, period_s = self._clock.now, self.machine.heartbeat_s
        self._waits_for_change = False
        if now >= self._due_at:
            self.hear(Woken())
            self._due_at = now + period_s
        self._changed = False
        view = self.view()
        self._wire.viewed(self, view)
        if now >= self._renew_at and len(self._plane):
            self._renew_at = now + MOVING_S
            self._plane.renew(self, view.backlog_s)
        self._clock.after(period_s / 2, self._rested)

    def _rested(self) -> None:
        """Half a heartbeat has passed: a view now if anything has changed, else when something does or it is due."""
        if self._changed:
            self._tick(self._tick_version)
        elif self.alive:
            self._waits_for_change = True
            self._clock.at(self._due_at, self._tick, self._tick_version)


def identity_of(
    replica_id: str, incarnation: int, spec: ModelSpec, layout: KVLayout, num_blocks: int, config: ReplicaCoreConfig
) -> ReplicaIdentity:
    """What the process says about itself at the handshake."""
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=f"{replica_id}.{incarnation}",
        version="simulated",
        model=spec,
        fingerprint=Fingerprint(model_digest=spec.digest, layout=layout),
        num_blocks=num_blocks,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        device=TRANSPORT,
        data_endpoints=(f"{TRANSPORT}://{replica_id}",),
    )

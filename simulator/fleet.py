"""All processes of a run: replicas that come and go, the router, the network, and what is done to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from contracts.cluster_io import ProposeReplicas, ReplicaDrainRequested, RoleRequested
from contracts.errors import ConfigError, Unavailable
from contracts.phase import Role
from scheduling.cluster_core import ClusterCore
from simulator.changes import Add, Change, Drain, Freeze, Kill, RestartRouter, SetLink, SetRoleTo
from simulator.clock import Clock
from simulator.collector import Collector
from simulator.cost import NoisySteps, believed_of, num_stages
from simulator.flight import Flight
from simulator.links import Network
from simulator.replica import SimulatedReplica
from simulator.replica_parts import ReplicaParts, identity_of, with_depth
from simulator.router import SimulatedRouter
from simulator.scenario import Group, Scenario
from simulator.shared_cores import CrowdedSteps, SharedCores, Steps
from simulator.timeline import Timeline
from simulator.transfers import DataPlane
from simulator.workload import Arrival

ROUTER_SILENCE_S = 5.0
"""After which a replica ends what a dead router asked for (`replica.config.LoopConfig.router_silence_s`)."""


@dataclass(slots=True, eq=False)
class Place:
    """One replica by name, whatever process runs there now. `ended` are the processes that were.

    Its link carries `link_bytes_per_s` each way, and nothing while the process is frozen."""

    replica_id: str
    group: Group
    role: Role
    body: SimulatedReplica
    link_bytes_per_s: float
    ended: list[SimulatedReplica] = field(default_factory=list)
    processes: int = 1


class SimulatedFleet:
    """Builds the fleet of a scenario and performs its changes."""

    def __init__(
        self, scenario: Scenario, clock: Clock, collector: Collector, random: Random, timeline: Timeline | None = None
    ) -> None:
        self.scenario = scenario
        self._timeline = timeline
        self.clock = clock
        self.network = Network(clock, scenario.latency_s)
        self.plane = DataPlane(clock, self.network)
        self.places: dict[str, Place] = {}
        self.collector = collector
        self._random = random
        self._numbers: Counter[str] = Counter()
        self._cores: dict[str, SharedCores] = {}
        self._costs = {id(group): believed_of(group.believed or group.cost) for group in scenario.fleet}
        self.router = self._new_router()
        self._coming = 0
        if scenario.scaling.most:
            collector.on_proposal = self._follow
        for group in scenario.fleet:
            for _ in range(group.count):
                self._add(group, group.role)
        for change in scenario.changes:
            clock.at(change.at_s, self.perform, change)

    def open(self, arrival: Arrival) -> None:
        """A client's request; while the router is down it is refused at once."""
        if self.router.alive:
            self.router.open(arrival)
        else:
            error = Unavailable("the router is down").info()
            self.collector.ended(Flight(arrival, f"r{arrival.number}"), None, error)

    def perform(self, change: Change) -> None:
        """Do one thing to the fleet. Raises `ConfigError` for a replica that never was."""
        match change:
            case Kill(replica_id=replica_id):
                self._kill(self._place(replica_id), change.restart_s)
            case Freeze(replica_id=replica_id):
                self._freeze(self._place(replica_id), change.for_s)
            case Drain(replica_id=replica_id):
                self.router.feed(ReplicaDrainRequested(self._place(replica_id).replica_id))
            case SetRoleTo(replica_id=replica_id):
                self.router.feed(RoleRequested(self._place(replica_id).replica_id, change.role, change.pinned))
            case Add():
                group = self.scenario.fleet[change.group]
                for _ in range(change.count):
                    self._add(group, change.role or group.role)
            case SetLink(replica_id=replica_id, bytes_per_s=rate):
                for place in [self._place(replica_id)] if replica_id else list(self.places.values()):
                    place.link_bytes_per_s = rate
                    self._set_link(place)
            case RestartRouter():
                self._restart_router(change.restart_s)

    def _follow(self, proposal: ProposeReplicas) -> None:
        """Do what the cluster core proposes, within the scenario's bounds, one step at a time: what is still wanted
        afterwards is proposed again. The replica goes that it names, if that is of the group that is scaled."""
        scaling = self.scenario.scaling
        group = self.scenario.fleet[scaling.group]
        here = [place for place in self.places.values() if place.group is group and place.body.alive]
        staying = [place for place in here if not place.body.core.state.draining]
        if proposal.change > 0 and len(staying) + self._coming < scaling.most:
            self._coming += 1
            self.clock.after(scaling.provision_s, self._provisioned, group)
        elif proposal.change < 0 and len(staying) > scaling.least:
            for place in staying:
                if place.replica_id == proposal.spared:
                    self.clock.after(0.0, self._dismiss, place.replica_id)

    def _dismiss(self, replica_id: str) -> None:
        """Nobody is told to go whom the core cannot do without, as `k8s.scaler` asks it first."""
        router = self.router
        if router.alive and router.core.why_not_drain(replica_id) is None:
            router.feed(ReplicaDrainRequested(replica_id))

    def _provisioned(self, group: Group) -> None:
        self._coming -= 1
        self._add(group, group.role)

    def _place(self, replica_id: str) -> Place:
        place = self.places.get(replica_id)
        if place is None:
            known = ", ".join(sorted(self.places))
            raise ConfigError(f"changes: there is no replica {replica_id}; there are {known}", param="changes")
        return place

    # --- replicas

    def _add(self, group: Group, role: Role) -> None:
        replica_id = f"{group.prefix}-{self._numbers[group.prefix]}"
        self._numbers[group.prefix] += 1
        rate = group.link_bytes_per_s
        self.network.set_host(replica_id, rate, rate)
        self.places[replica_id] = Place(replica_id, group, role, self._start(replica_id, group, role, 1), rate)

    def _start(self, replica_id: str, group: Group, role: Role, number: int) -> SimulatedReplica:
        """A new process, and its handshake with the router."""
        config = with_depth(self.scenario.scheduling, num_stages(group.cost))
        layout = group.kv.layout
        parts = ReplicaParts(
            identity=identity_of(
                *(replica_id, number, group.spec, layout, group.num_blocks, config),
                has_data_plane=group.link_bytes_per_s > 0.0,
            ),
            role=role,
            config=config,
            layout=layout,
            believed=self._costs[id(group)],
            steps=self._steps(group),
            heartbeat_s=self.scenario.heartbeat_s,
            turn_s=group.turn_s,
            timeline=self._timeline,
        )
        body = SimulatedReplica(parts, self.clock, self.plane, self.router)
        self.clock.after(2.0 * self.scenario.router.message_s, self._hello, body)
        return body

    def _steps(self, group: Group) -> Steps:
        chance = Random(self._random.getrandbits(64))
        alone = NoisySteps(group.cost, group.noise, chance)
        if not group.machine or group.crowded is None:
            return alone
        cores = self._cores.setdefault(group.machine, SharedCores(self.clock))
        return CrowdedSteps(alone, NoisySteps(group.crowded, group.noise, chance), cores)

    def _hello(self, body: SimulatedReplica) -> None:
        self.router.join(body)

    def _kill(self, place: Place, restart_s: float) -> None:
        if not place.body.alive:
            return
        place.body.kill()
        self.clock.after(self.scenario.router.message_s, self._notice, place.body)
        if restart_s > 0.0:
            self.clock.after(restart_s, self._restart, place)

    def _notice(self, body: SimulatedReplica) -> None:
        if self.router.bodies.get(body.replica_id) is body:
            self.router.lost(body.replica_id, "it closed the connection")

    def _restart(self, place: Place) -> None:
        place.ended.append(place.body)
        place.processes += 1
        place.body = self._start(place.replica_id, place.group, place.role, place.processes)

    def _freeze(self, place: Place, for_s: float) -> None:
        place.body.freeze(for_s)
        self._set_link(place)
        self.clock.after(for_s, self._set_link, place)

    def _set_link(self, place: Place) -> None:
        rate = 0.0 if place.body.frozen else place.link_bytes_per_s
        self.network.set_host(place.replica_id, rate, rate)

    # --- the router

    def _new_router(self) -> SimulatedRouter:
        core = ClusterCore(self.scenario.cluster)
        return SimulatedRouter(core, self.clock, self.collector, self.scenario.router)

    def _restart_router(self, restart_s: float) -> None:
        """Replicas end what the dead router asked for once it has been silent for long enough. One that is down cannot
        die again."""
        old = self.router
        if not old.alive:
            return
        old.stop(Unavailable("the router was restarted").info())
        for body in old.bodies.values():
            self.clock.after(ROUTER_SILENCE_S, body.forget, tuple(body.core.state.sequences))
        self.clock.after(restart_s, self._serve_again)

    def _serve_again(self) -> None:
        self.router = self._new_router()
        for place in self.places.values():
            self.router.join(place.body)

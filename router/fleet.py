"""The body of the cluster core: performs its actions over the replica links, feeds it what happens. No policy.

All state is touched from one event loop; the core never sees two events at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable

from contracts import wire
from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    DispatchPrefill,
    DrainReplica,
    GrantLease,
    PrefixesChanged,
    ProposeReplicas,
    RefuseRequest,
    ReplicaDrainRequested,
    ReplicaJoined,
    ReplicaLost,
    RequestRefused,
    RevokeLease,
    RoleRequested,
    SetRole,
    TimePassed,
    ViewReported,
)
from contracts.discovery import Discovery
from contracts.errors import Cancelled, ErrorInfo, PhaseServeError, Unavailable, error_from
from contracts.handoff import KVTicket
from contracts.model import ModelSpec
from contracts.prefixes import PrefixChange
from contracts.replica_io import SequenceOutput
from contracts.views import ReplicaIdentity, ReplicaView
from router.arrival import arrival_of
from router.call import Call
from router.config import RouterConfig
from router.deliveries import Deliveries
from router.fleet_side import FleetSide
from router.flight import Flight
from router.flights import Flights
from router.generation import Generation
from router.handoff_metrics import HandoffEnd
from router.handshake import why_not_served
from router.membership import Links, control_context
from router.metrics import RouterMetrics
from router.placements import Placements
from router.replica_link import ReplicaLink
from router.token_table import TokenTable
from scheduling.cluster_core import ClusterCore
from scheduling.peer_lists import PeerLists

log = logging.getLogger("phaseserve.router")


class Fleet:
    """Calls in, tokens out. `run` keeps the links; `open` and `close` are for the HTTP side."""

    def __init__(
        self,
        config: RouterConfig,
        core: ClusterCore,
        spec: ModelSpec,
        table: TokenTable,
        metrics: RouterMetrics,
        discovery: Discovery,
    ) -> None:
        self.core = core
        self._discovery = discovery
        self._config = config
        self._spec = spec
        self._table = table
        self._metrics = metrics
        self._context = control_context()
        self.links = Links(config, self._context, owner=self)
        self._side = FleetSide(core, self.links, self._feed, config.shard, config.shards)
        self._joined: dict[str, ReplicaLink] = {}
        self._contexts: dict[str, int] = {}
        self.stopped = False  # once the loop has ended only a new process helps
        self._flights = Flights()
        self._placements = Placements(self._flights, self._send, config.slo, metrics.handoffs)
        self._deliveries = Deliveries(self._flights, self._placements, metrics, self._feed)
        self._peers = PeerLists()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.links.run())
                group.create_task(self._tick())
                group.create_task(self._discovery.run(self._side))
        finally:
            self.stopped = True
            for flight in self._flights:
                self._fail(flight, Unavailable("the router is stopping"))
            self._context.destroy(linger=0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick_s)
            self._feed(TimePassed())

    # ---- the HTTP side ------------------------------------------------------------------------------------------

    @property
    def num_flights(self) -> int:
        """Client requests that have not ended."""
        return len(self._flights)

    @property
    def max_context(self) -> int:
        """Tokens of prompt and output that every live replica can hold (a replica may hold less than the model)."""
        own = self._config.max_context or self._spec.max_context
        return min(own, *self._contexts.values()) if self._contexts else own

    def identity_of(self, replica_id: str) -> ReplicaIdentity | None:
        """What a joined replica said about itself."""
        return self._peers.identity_of(replica_id)

    def not_ready(self) -> str | None:
        """None when a token could be produced now, else why not."""
        if self.stopped:
            return "the fleet loop has ended"
        reason = self.core.ready(time.monotonic())
        if reason is not None and not self._joined:
            return "; ".join(filter(None, [self._discovery.trouble(), *self.links.missing()])) or reason
        return reason

    def open(self, generation: Generation, arrived_s: float) -> Call:
        """Hand a validated request to the core. Refusals surface in `Call.wait`; the caller owes a `close`."""
        call = Call(generation, self._table)
        if self.stopped:
            call.fail(Unavailable("the router is stopping"))
            return call
        call.flights = self._flights.add(call, arrived_s)
        for flight in call.flights:
            self._feed(arrival_of(flight, self._config.slo, self.core))
        return call

    def close(self, call: Call) -> None:
        """Nobody waits for this call any more: whatever of it is still under way is cancelled. Idempotent."""
        for flight in call.flights:
            if not flight.ended:
                self._feed(ClientLeft(flight.request_id))
                self._placements.end([flight], HandoffEnd.CANCELLED)
                self._flights.remove(flight)

    def cancel(self, request_id: str) -> int:
        """End every open call that goes by this id; its client gets a 499. How many there were."""
        calls = {id(flight.call): flight.call for flight in self._flights if flight.call.generation.goes_by(request_id)}
        for call in calls.values():
            call.fail(Cancelled("the request was cancelled by its id"))
            self.close(call)
        return len(calls)

    def tell(self, wish: RoleRequested | ReplicaDrainRequested) -> None:
        """What an operator wants. The core's `why_not_role` and `why_not_drain` say before whether it will be."""
        self._feed(wish)

    # ---- what replicas say (LinkOwner) --------------------------------------------------------------------------

    def joined(self, link: ReplicaLink, welcome: wire.Welcome) -> str | None:
        identity = welcome.identity
        refusal = why_not_served(welcome, self._spec)
        if refusal is None and (other := self._joined.get(identity.replica_id)) is not None:
            if self.links.is_wanted(other):
                refusal = f"another endpoint already is replica {identity.replica_id}"
            else:  # its pod was replaced by one with another address before anybody saw the old one end
                self.lost(other, f"it is at {link.endpoint} now")
                other.replica_id = None
        if refusal is not None:
            return refusal
        link.replica_id = identity.replica_id
        self._joined[identity.replica_id] = link
        self._contexts[identity.replica_id] = identity.model.max_context
        log.info("replica %s at %s joined (%s)", identity.replica_id, link.endpoint, welcome.view.role)
        self._peers.joined(identity, welcome.view.role)
        self._feed(ReplicaJoined(identity, welcome.view))
        self._tell_peers()
        return None

    def reported(self, link: ReplicaLink, view: ReplicaView) -> None:
        self._feed(ViewReported(view))
        if self._peers.role_of(view.replica_id) is not view.role and view.replica_id == link.replica_id:
            self._peers.changed_role(view.replica_id, view.role)
            self._tell_peers()

    def produced(self, link: ReplicaLink, outputs: tuple[SequenceOutput, ...]) -> None:
        self._deliveries.produced(link.replica_id, outputs)

    def reserved(self, link: ReplicaLink, sequence_id: str, ticket: KVTicket) -> None:
        self._deliveries.reserved(link.replica_id, sequence_id, ticket)

    def refused(self, link: ReplicaLink, sequence_id: str, error: ErrorInfo) -> None:
        self._deliveries.refused(link.replica_id, sequence_id, error)

    def cached(self, link: ReplicaLink, change: PrefixChange) -> None:
        identity = self._peers.identity_of(link.replica_id or "")
        if identity is not None:
            self._feed(PrefixesChanged(identity.replica_id, identity.incarnation, change))

    def lost(self, link: ReplicaLink, reason: str) -> None:
        replica_id = link.replica_id
        assert replica_id is not None
        del self._joined[replica_id]
        del self._contexts[replica_id]
        self._peers.left(replica_id)
        here = [flight for flight in self._flights.that_need(replica_id) if not self._deliveries.has_all(flight)]
        self._placements.end(here, HandoffEnd.FAILED)
        self._feed(ReplicaLost(replica_id, reason, {flight.request_id: flight.tokens_sent for flight in here}))
        for flight in here:  # the core, which knows less about the legs, may not have seen that this one ended
            if not flight.ended and not flight.placed:
                self._deliveries.lost_place(
                    flight, replica_id, Unavailable(f"replica {replica_id} is gone: {reason}").info()
                )
        self._tell_peers()
        self.links.lost()

    def malformed(self, link: ReplicaLink) -> None:
        self._metrics.malformed_messages.inc()

    # ---- the core -----------------------------------------------------------------------------------------------

    def _feed(self, event: ClusterEvent) -> None:
        """Hand an event to the core and perform what it says; what that leads to is handed to it in turn."""
        events: deque[ClusterEvent] = deque([event])
        while events:
            for action in self.core.handle(events.popleft(), time.monotonic()):
                events.extend(self._perform(action))

    def _perform(self, action: ClusterAction) -> Iterable[ClusterEvent]:
        match action:
            case Dispatch():
                return self._dispatch(action)
            case GrantLease(replica_id, duration_s):
                self._send(replica_id, wire.Lease(duration_s=duration_s))
            case RevokeLease(replica_id):
                self._send(replica_id, wire.Lease(duration_s=0.0))
            case DispatchPrefill():
                return self._dispatch_prefill(action)
            case CancelOn(replica_id, request_id):
                if (flight := self._flights.get(request_id)) is not None:
                    self._placements.end_on(flight, replica_id)
            case SetRole(replica_id, role):
                self._send(replica_id, wire.Assign(role=role))
            case DrainReplica(replica_id):
                self._send(replica_id, wire.Drain())
            case ProposeReplicas(change, reason):
                self._discovery.proposed(action)
                log.info(
                    "a fleet with %d %s would do better: %s", abs(change), "more" if change > 0 else "fewer", reason
                )
                self._metrics.proposals.labels("more" if change > 0 else "fewer").inc()
            case RefuseRequest(request_id, error):
                if (flight := self._flights.get(request_id)) is not None:
                    self._fail(flight, error_from(error))
        return ()

    def _dispatch(self, action: Dispatch) -> Iterable[ClusterEvent]:
        flight = self._flights.get(action.request_id)
        if flight is None or self._placements.begin(flight, action.plan, action.submit_index):
            return ()
        return (self._not_reached(flight, action.plan.replica_id),)

    def _dispatch_prefill(self, action: DispatchPrefill) -> Iterable[ClusterEvent]:
        flight = self._flights.get(action.request_id)
        if flight is None or self._placements.begin_prefill(
            flight, action.sequence, action.replica_id, action.submit_index
        ):
            return ()
        self._placements.end([flight], HandoffEnd.FAILED)
        return (self._not_reached(flight, action.replica_id),)

    def _not_reached(self, flight: Flight, replica_id: str) -> RequestRefused:
        error = Unavailable(f"replica {replica_id} cannot be reached").info()
        return RequestRefused(flight.request_id, replica_id, error, flight.tokens_sent)

    def _tell_peers(self) -> None:
        for replica_id, peers in self._peers.news():
            self._send(replica_id, wire.Peers(peers=peers))

    def _fail(self, flight: Flight, error: PhaseServeError) -> None:
        self._placements.end([flight], HandoffEnd.FAILED)
        self._flights.remove(flight)
        flight.call.fail(error)

    def _send(self, replica_id: str, message: wire.RouterMessage) -> bool:
        link = self._joined.get(replica_id)
        return link is not None and link.send(message)

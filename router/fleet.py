"""The body of the cluster core: performs its actions over the replica links, feeds it what happens. No policy.

All state is touched from one event loop; the core never sees two events at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable

import zmq.asyncio

from contracts import wire
from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClientRequestArrived,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    FirstTokenSent,
    GrantLease,
    PrefillFinished,
    RefuseRequest,
    ReplicaJoined,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    RevokeLease,
    TimePassed,
    ViewReported,
)
from contracts.errors import ErrorInfo, PhaseServeError, Unavailable, error_from
from contracts.model import ModelSpec
from contracts.replica_io import SequenceOutput
from contracts.request import Request
from contracts.views import ReplicaView
from router.call import Call, Flight
from router.config import RouterConfig
from router.flights import Flights
from router.generation import Generation
from router.given_up import given_up, own_words
from router.handshake import why_not_served
from router.metrics import RouterMetrics
from router.outcome import flight_outcome
from router.replica_link import ReplicaLink
from router.token_table import TokenTable
from scheduling.cluster_core import ClusterCore

log = logging.getLogger("phaseserve.router")


class Fleet:
    """Calls in, tokens out. `run` keeps the links; `open` and `close` are for the HTTP side."""

    def __init__(
        self, config: RouterConfig, core: ClusterCore, spec: ModelSpec, table: TokenTable, metrics: RouterMetrics
    ) -> None:
        self.core = core
        self._config = config
        self._spec = spec
        self._table = table
        self._metrics = metrics
        self._context = zmq.asyncio.Context()
        router_id = f"router-{uuid.uuid4().hex[:12]}"
        self.links = [
            ReplicaLink(
                endpoint,
                router_id=router_id,
                context=self._context,
                owner=self,
                heartbeat_s=config.heartbeat_s,
                silence_s=config.silence_s,
            )
            for endpoint in config.replicas
        ]
        self._joined: dict[str, ReplicaLink] = {}
        self._contexts: dict[str, int] = {}
        self.stopped = False  # once the loop has ended only a new process helps
        self._flights = Flights()

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for link in self.links:
                    group.create_task(link.run())
                group.create_task(self._tick())
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

    def not_ready(self) -> str | None:
        """None when a token could be produced now, else why not."""
        if self.stopped:
            return "the fleet loop has ended"
        reason = self.core.ready(time.monotonic())
        if reason is not None and not self._joined:
            return "; ".join(f"{link.endpoint}: {link.why_not}" for link in self.links)
        return reason

    def open(self, generation: Generation, arrived_s: float) -> Call:
        """Hand a validated request to the core. Refusals surface in `Call.wait`; the caller owes a `close`."""
        call = Call(generation, self._table)
        if self.stopped:
            call.fail(Unavailable("the router is stopping"))
            return call
        call.flights = self._flights.add(call, arrived_s)
        for flight in call.flights:
            self._feed(
                ClientRequestArrived(
                    request_id=flight.request_id,
                    prompt_tokens=len(flight.token_ids),
                    max_tokens=generation.max_tokens[flight.prompt_index],
                    num_sequences=generation.n,
                    slo=self._config.slo,
                    priority=generation.priority,
                )
            )
        return call

    def close(self, call: Call) -> None:
        """Nobody waits for this call any more: whatever of it is still under way is cancelled. Idempotent."""
        for flight in call.flights:
            if not flight.ended:
                self._feed(ClientLeft(flight.request_id))
                self._flights.remove(flight)

    # ---- what replicas say (LinkOwner) --------------------------------------------------------------------------

    def joined(self, link: ReplicaLink, welcome: wire.Welcome) -> str | None:
        identity = welcome.identity
        refusal = why_not_served(welcome, self._spec)
        if refusal is None and identity.replica_id in self._joined:
            refusal = f"another endpoint already is replica {identity.replica_id}"
        if refusal is not None:
            return refusal
        link.replica_id = identity.replica_id
        self._joined[identity.replica_id] = link
        self._contexts[identity.replica_id] = identity.model.max_context
        log.info("replica %s at %s joined (%s)", identity.replica_id, link.endpoint, welcome.view.role)
        self._feed(ReplicaJoined(identity, welcome.view))
        return None

    def reported(self, link: ReplicaLink, view: ReplicaView) -> None:
        self._feed(ViewReported(view))

    def produced(self, link: ReplicaLink, outputs: tuple[SequenceOutput, ...]) -> None:
        now = time.monotonic()
        stopped: list[str] = []
        for output in outputs:
            if (known := self._flights.at(link.replica_id, output.request_id)) is None:
                continue
            if (error := given_up(link.replica_id, output)) is not None:
                self._placement_failed(known[0], error)
            elif self._deliver(known[0], known[1], output, now):
                stopped.append(output.request_id)
        if stopped:
            link.send(wire.Cancel(request_ids=tuple(stopped)))

    def refused(self, link: ReplicaLink, sequence_id: str, error: ErrorInfo) -> None:
        known = self._flights.at(link.replica_id, sequence_id)
        if known is not None:
            self._placement_failed(known[0], own_words(link.replica_id, error))

    def lost(self, link: ReplicaLink, reason: str) -> None:
        replica_id = link.replica_id
        assert replica_id is not None
        del self._joined[replica_id]
        del self._contexts[replica_id]
        here = [(flight, flight.attempt) for flight in self._flights.on(replica_id)]
        for flight, _ in here:
            self._flights.placement_ended(flight)
        self._feed(ReplicaLost(replica_id, reason))
        for flight, attempt in here:
            flight.unplace(attempt)

    def malformed(self, link: ReplicaLink) -> None:
        self._metrics.malformed_messages.inc()

    # ---- flights ------------------------------------------------------------------------------------------------

    def _deliver(self, flight: Flight, i: int, output: SequenceOutput, now: float) -> bool:
        """Pass tokens on. True when a stop string ended the sequence early."""
        track = flight.tracks[i]
        is_first = track.first_s is None and bool(output.token_ids)
        if output.token_ids:
            num_new = len(output.token_ids)
            self._metrics.tokens.observe(num_new, track.tokens_arrived(num_new, now))
        stopped = flight.deliver(i, output)
        if is_first:
            self._first_token(flight, now)
        if track.ended:
            self._flights.sequence_ended(output.request_id)
            if all(track.ended for track in flight.tracks):
                outcome = flight_outcome(flight)
                self._metrics.observe_outcome(flight, outcome)
                self._flights.remove(flight)
                self._feed(RequestEnded(flight.request_id, outcome))
        return stopped

    def _first_token(self, flight: Flight, now: float) -> None:
        num_started = sum(track.first_s is not None for track in flight.tracks)
        if num_started == 1:
            self._metrics.observe_first_token(flight, now)
            self._feed(FirstTokenSent(flight.request_id))
        if num_started == len(flight.tracks):
            self._feed(PrefillFinished(flight.request_id))

    def _placement_failed(self, flight: Flight, error: ErrorInfo) -> None:
        """A placement ended by the replica's doing: the core places the request anew or gives it up."""
        replica_id, attempt = flight.replica_id, flight.attempt
        assert replica_id is not None
        self._flights.placement_ended(flight)
        self._feed(RequestRefused(flight.request_id, replica_id, error))
        flight.unplace(attempt)

    def _fail(self, flight: Flight, error: PhaseServeError) -> None:
        self._flights.remove(flight)
        flight.call.fail(error)

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
            case CancelOn(replica_id, request_id):
                flight = self._flights.get(request_id)
                if flight is not None and flight.replica_id == replica_id:
                    self._send(replica_id, wire.Cancel(request_ids=flight.sequence_ids(only_open=True)))
            case RefuseRequest(request_id, error):
                flight = self._flights.get(request_id)
                if flight is not None:
                    self._fail(flight, error_from(error))
        return ()

    def _dispatch(self, action: Dispatch) -> Iterable[ClusterEvent]:
        flight = self._flights.get(action.request_id)
        if flight is None:
            return ()
        flight.place(action.plan)
        requests = tuple(self._request(flight, i, action.submit_index) for i in range(len(flight.tracks)))
        if not self._send(action.plan.replica_id, wire.Submit(requests=requests)):
            error = Unavailable(f"replica {action.plan.replica_id} cannot be reached").info()
            return (RequestRefused(action.request_id, action.plan.replica_id, error),)
        self._flights.placed(flight)
        return ()

    def _request(self, flight: Flight, i: int, submit_index: int) -> Request:
        generation = flight.call.generation
        return Request(
            request_id=flight.sequence_id(i),
            prompt_token_ids=flight.token_ids,
            sampling=generation.sampling_of(flight.prompt_index, i),
            slo=self._config.slo,
            priority=generation.priority,
            waited_s=time.monotonic() - flight.arrived_s,
            submit_index=submit_index,
        )

    def _send(self, replica_id: str, message: wire.RouterMessage) -> bool:
        link = self._joined.get(replica_id)
        return link is not None and link.send(message)

"""Requests under way at a simulated router, and what is decided about them as messages to one or two replicas."""

from __future__ import annotations

from collections.abc import Callable

from contracts.cluster_io import Dispatch, DispatchPrefill, RequestRefused
from contracts.errors import Unavailable
from contracts.handoff import DecodeLeg, PrefillLeg
from contracts.request import Request, SamplingParams
from simulator.clock import Clock
from simulator.flight import Flight
from simulator.replica import SimulatedReplica
from simulator.workload import FILLER

Send = Callable[..., bool]


class Placements:
    """`send(replica_id, say, *words)` hands a message to a replica; false when it cannot be reached."""

    def __init__(self, clock: Clock, send: Send) -> None:
        self.flights: dict[str, Flight] = {}
        self.by_sequence: dict[str, Flight] = {}
        self._clock = clock
        self._send = send
        self._sampling = SamplingParams(temperature=0.0)

    def that_need(self, replica_id: str) -> list[Flight]:
        """Those whose present placement comes to nothing without a replica."""
        return [flight for flight in self.flights.values() if flight.needs(replica_id)]

    def begin(self, action: Dispatch) -> RequestRefused | None:
        """Send a request to the replica of its plan. The answer says that it cannot be reached."""
        flight = self.flights.get(action.request_id)
        if flight is None:
            return None
        self.end(flight)
        flight.place(action.plan)
        plan, leg = action.plan, None
        if plan.prefill_replica_id is not None:
            leg = DecodeLeg(
                prefill_replica_id=plan.prefill_replica_id,
                expected_s=plan.handoff_expected_s,
                link_bytes_per_s=plan.prediction.link_bytes_per_s,
            )
        if not self._submit(flight, plan.replica_id, action.submit_index, leg):
            flight.decode_on = None
            return _not_reached(flight, plan.replica_id)
        self.by_sequence[flight.sequence_id] = flight
        return None

    def begin_prefill(self, action: DispatchPrefill) -> RequestRefused | None:
        """Send the prefill leg of a request whose ticket came."""
        flight = self.flights.get(action.request_id)
        if flight is None or flight.ticket is None or flight.prefill_on is not None or flight.decode_on is None:
            return None  # it ended, or was placed anew, while the core thought about it
        if self._submit(flight, action.replica_id, action.submit_index, PrefillLeg(ticket=flight.ticket)):
            flight.prefill_on = action.replica_id
            return None
        self.end(flight)
        return _not_reached(flight, action.replica_id)

    def end_on(self, replica_id: str, request_id: str) -> None:
        """The core wants the request's work on one replica to end, and with it what is of no use without."""
        flight = self.flights.get(request_id)
        if flight is None:
            return
        if flight.needs(replica_id):
            self.end(flight)
        elif flight.prefill_on == replica_id:
            flight.prefill_on = None
            self._send(replica_id, SimulatedReplica.cancel, flight.sequence_id)

    def end(self, flight: Flight) -> None:
        """Nothing more is wanted of its present placement: replicas on which it still runs are told at once."""
        told = {flight.decode_on, flight.prefill_on}
        plan = flight.plan
        if flight.handed_over and plan is not None and flight.usage is None and flight.decode_on is not None:
            told.add(plan.prefill_replica_id)  # it may still hold the KV for the receiver
        flight.decode_on = flight.prefill_on = None
        self.by_sequence.pop(flight.sequence_id, None)
        for replica_id in sorted(name for name in told if name is not None):
            self._send(replica_id, SimulatedReplica.cancel, flight.sequence_id)

    def forget(self, flight: Flight) -> None:
        """It has ended; its placement must have."""
        self.by_sequence.pop(flight.sequence_id, None)
        self.flights.pop(flight.request_id, None)

    def _submit(self, flight: Flight, replica_id: str, index: int, leg: PrefillLeg | DecodeLeg | None) -> bool:
        arrival = flight.arrival
        sampling = self._sampling
        if sampling.max_tokens != arrival.max_tokens:
            sampling = self._sampling = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens)
        request = Request(
            request_id=flight.sequence_id,
            prompt_token_ids=arrival.prompt,
            sampling=sampling,
            slo=arrival.kind.slo,
            priority=arrival.kind.priority,
            waited_s=self._clock.now - arrival.at_s,
            submit_index=index,
            output_token_ids=(FILLER,) * flight.num_tokens,
            leg=leg,
        )
        ends_at = len(arrival.prompt) + arrival.output_tokens - 1
        return self._send(replica_id, SimulatedReplica.submit, request, ends_at)


def _not_reached(flight: Flight, replica_id: str) -> RequestRefused:
    error = Unavailable(f"replica {replica_id} cannot be reached").info()
    return RequestRefused(flight.request_id, replica_id, error, flight.num_tokens)

"""Placements begun and ended: what is decided about a flight becomes messages to one or two replicas."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from contracts import wire
from contracts.handoff import DecodeLeg, PrefillLeg
from contracts.plan import Plan
from contracts.request import Request, SamplingParams, Slo
from router.flight import Flight
from router.flights import Flights
from router.handoff_metrics import HandoffEnd, HandoffMetrics
from router.legs import Leg, PlacedSequence

Send = Callable[[str, wire.RouterMessage], bool]


class Placements:
    """`send` hands a message to a replica's link; false when it cannot be reached."""

    def __init__(self, flights: Flights, send: Send, slo: Slo, metrics: HandoffMetrics) -> None:
        self._flights = flights
        self._send = send
        self._slo = slo
        self._metrics = metrics

    def begin(self, flight: Flight, plan: Plan, submit_index: int) -> bool:
        """Send every sequence that has not ended to the replica of the plan. False when it cannot be reached."""
        self.end([flight], HandoffEnd.FAILED)  # the core had a reason to move it that this router has not seen
        flight.place(plan)
        requests = tuple(self._decode_request(flight, placed, submit_index) for placed in flight.placed.values())
        if not self._send(plan.replica_id, wire.Submit(requests=requests)):
            flight.placed.clear()
            return False
        self._flights.placed(flight)
        self._metrics.placed(flight, plan)
        return True

    def begin_prefill(self, flight: Flight, number: int, replica_id: str, submit_index: int) -> bool:
        """Send the prefill leg of a sequence whose ticket came. False when the replica cannot be reached."""
        placed = flight.placed.get(number)
        if placed is None or placed.ticket is None or placed.prefill is not None:
            return True  # it ended, or was placed anew, while the core thought about it
        sampling = flight.call.generation.sampling_of(flight.prompt_index, number)
        if placed.start_index > 0:
            sampling = _without_prompt_logprobs(sampling)
        request = self._request(flight, placed, sampling, submit_index, PrefillLeg(ticket=placed.ticket))
        if not self._send(replica_id, wire.Submit(requests=(request,))):
            return False
        placed.prefill = Leg(replica_id, placed.start_index)
        return True

    def end(self, flights: Iterable[Flight], how: HandoffEnd) -> None:
        """These placements are over: replicas on which they still run are told at once, one message for each."""
        cancels: dict[str, list[str]] = defaultdict(list)
        for flight in flights:
            for placed in tuple(flight.placed.values()):
                self.end_sequence(flight, placed, how, cancels)
        self.tell(cancels)

    def end_on(self, flight: Flight, replica_id: str) -> None:
        """The core wants the flight's work on one replica to end, and with it what is of no use without."""
        cancels: dict[str, list[str]] = defaultdict(list)
        for placed in tuple(flight.placed.values()):
            leg = placed.leg_on(replica_id)
            if placed.needs(replica_id):
                self.end_sequence(flight, placed, HandoffEnd.CANCELLED, cancels)
            elif leg is not None:
                leg.ended = True
                cancels[replica_id].append(placed.sequence_id)
        self.tell(cancels)

    def end_sequence(
        self, flight: Flight, placed: PlacedSequence, how: HandoffEnd, cancels: dict[str, list[str]]
    ) -> None:
        """One sequence of a placement is over. Adds to `cancels` what `tell` has to say to whom."""
        self._flights.sequence_ended(flight, placed)
        flight.tracks[placed.number].left(placed)
        if placed.prefill_replica_id is not None:
            self._metrics.ended(_how_it_ended(placed, how))
        for replica_id in placed.end():
            cancels[replica_id].append(placed.sequence_id)

    def tell(self, cancels: dict[str, list[str]]) -> None:
        """Send the cancellations that came together."""
        for replica_id, sequence_ids in cancels.items():
            self._send(replica_id, wire.Cancel(request_ids=tuple(sequence_ids)))

    def _decode_request(self, flight: Flight, placed: PlacedSequence, submit_index: int) -> Request:
        plan = flight.plan
        assert plan is not None
        sampling = flight.call.generation.sampling_of(flight.prompt_index, placed.number)
        leg: DecodeLeg | None = None
        if plan.prefill_replica_id is not None:
            leg = DecodeLeg(
                prefill_replica_id=plan.prefill_replica_id,
                expected_s=plan.handoff_expected_s,
                link_bytes_per_s=plan.prediction.link_bytes_per_s,
            )
        if leg is not None or placed.start_index > 0:  # the other leg computes the prompt; or they have come
            sampling = _without_prompt_logprobs(sampling)
        return self._request(flight, placed, sampling, submit_index, leg)

    def _request(
        self,
        flight: Flight,
        placed: PlacedSequence,
        sampling: SamplingParams,
        submit_index: int,
        leg: PrefillLeg | DecodeLeg | None,
    ) -> Request:
        return Request(
            request_id=placed.sequence_id,
            prompt_token_ids=flight.token_ids,
            sampling=sampling,
            slo=self._slo,
            priority=flight.call.generation.priority,
            waited_s=time.monotonic() - flight.arrived_s,
            submit_index=submit_index,
            output_token_ids=tuple(flight.tracks[placed.number].token_ids[: placed.start_index]),
            leg=leg,
        )


def _how_it_ended(placed: PlacedSequence, how: HandoffEnd) -> HandoffEnd:
    if placed.received:
        return HandoffEnd.COMPLETED if placed.reported else HandoffEnd.UNREPORTED
    return HandoffEnd.REFUSED if how is HandoffEnd.FAILED and placed.ticket is None else how


def _without_prompt_logprobs(sampling: SamplingParams) -> SamplingParams:
    if sampling.prompt_logprobs is None:
        return sampling
    return msgspec.structs.replace(sampling, prompt_logprobs=None)

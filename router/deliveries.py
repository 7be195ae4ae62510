"""Replicas' outputs as the client's tokens, and the ends of legs as what the core is told. No policy."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable

from contracts.cluster_io import (
    ClusterEvent,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RequestEnded,
    RequestRefused,
)
from contracts.errors import ErrorInfo, ProtocolError, Unavailable
from contracts.handoff import KVTicket
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from router.flight import Flight
from router.flights import Flights
from router.given_up import given_up, own_words
from router.handoff_metrics import HandoffEnd
from router.legs import Leg, PlacedSequence
from router.metrics import RouterMetrics
from router.outcome import flight_outcome
from router.placements import Placements

log = logging.getLogger("phaseserve.router")


class Deliveries:
    """`feed` hands an event to the core and performs what it says."""

    def __init__(
        self, flights: Flights, placements: Placements, metrics: RouterMetrics, feed: Callable[[ClusterEvent], None]
    ) -> None:
        self._flights = flights
        self._placements = placements
        self._metrics = metrics
        self._feed = feed

    def produced(self, replica_id: str | None, outputs: tuple[SequenceOutput, ...]) -> None:
        """What one step of a replica gave; outputs that nobody wants any more are left out."""
        now = time.monotonic()
        cancels: dict[str, list[str]] = defaultdict(list)
        for output in outputs:
            if (known := self._flights.at(replica_id, output.request_id)) is None:
                continue
            flight, placed, leg = known
            if (error := given_up(replica_id, output)) is not None:
                self._leg_failed(flight, placed, leg, error)
                continue
            known_ids = flight.tracks[placed.number].token_ids
            if placed.goes_on(leg, output, known_ids):
                self._deliver(flight, placed, output, now, cancels)
                continue
            try:
                for news in placed.take(leg, output, known_ids):
                    if self._deliver(flight, placed, news, now, cancels):
                        break
            except ProtocolError as wrong:
                self._broke_protocol(flight, placed, leg, str(wrong))
        self._placements.tell(cancels)

    def reserved(self, replica_id: str | None, sequence_id: str, ticket: KVTicket) -> None:
        """The decode leg of a sequence has its blocks."""
        known = self._flights.at(replica_id, sequence_id)
        if known is None:
            return
        flight, placed, leg = known
        if leg is not placed.decode or placed.prefill_replica_id is None or ticket.receiver_id != leg.replica_id:
            wrong = f"replica {replica_id} says that {ticket.receiver_id} reserved blocks for {sequence_id}"
            self._broke_protocol(flight, placed, leg, wrong)
        elif placed.ticket is None:
            placed.ticket = ticket
            self._feed(KVReserved(flight.request_id, placed.number))

    def refused(self, replica_id: str | None, sequence_id: str, error: ErrorInfo) -> None:
        """A leg was not accepted."""
        known = self._flights.at(replica_id, sequence_id)
        if known is not None:
            self._leg_failed(*known, own_words(replica_id, error))

    def _deliver(
        self,
        flight: Flight,
        placed: PlacedSequence,
        output: SequenceOutput,
        now: float,
        cancels: dict[str, list[str]],
    ) -> bool:
        """Pass on what is new. True when the sequence has ended."""
        track = flight.tracks[placed.number]
        if output.usage is not None:
            track.used(placed.usage_of(output.usage))
        if not output.token_ids and output.finish is None and not output.prompt_logprobs:
            return False  # the other leg has said it
        if output.token_ids:
            num_new = len(output.token_ids)
            self._metrics.tokens.observe(num_new, track.tokens_arrived(output.token_ids, now))
        flight.deliver(placed.number, output)
        if output.token_ids and not placed.started:
            placed.started = True
            self._first_token(flight, now)
        if not track.ended:
            return False
        self._placements.end_sequence(flight, placed, HandoffEnd.NOT_NEEDED, cancels)
        if all(track.ended for track in flight.tracks):
            self._succeeded(flight)
        return True

    def _first_token(self, flight: Flight, now: float) -> None:
        """A sequence got its first token since it was placed."""
        if flight.first_s is None:
            flight.first_s = now
            self._metrics.observe_first_token(flight, now)
        num_started = sum(placed.started for placed in flight.placed.values())
        if num_started == 1:
            self._feed(FirstTokenSent(flight.request_id))
        if num_started == len(flight.placed):
            self._feed(PrefillFinished(flight.request_id))

    def _succeeded(self, flight: Flight) -> None:
        outcome = flight_outcome(flight)
        self._metrics.observe_outcome(flight, outcome)
        self._flights.remove(flight)
        self._feed(RequestEnded(flight.request_id, outcome))

    def _leg_failed(self, flight: Flight, placed: PlacedSequence, leg: Leg, error: ErrorInfo) -> None:
        """A leg ended by its replica's doing: the core places the request anew or gives it up.

        What becomes of the prefill leg no longer matters once the sequence has its first token.
        """
        leg.ended = True
        if (leg is placed.prefill and not placed.needs_prefill) or self.has_all(flight):
            return
        self._placements.end([flight], HandoffEnd.FAILED)
        self.lost_place(flight, leg.replica_id, error)

    def _broke_protocol(self, flight: Flight, placed: PlacedSequence, leg: Leg, wrong: str) -> None:
        """The replica still runs the leg, but nothing it says can be trusted."""
        log.error("%s", wrong)
        self._metrics.malformed_messages.inc()
        self._placements.tell({leg.replica_id: [placed.sequence_id]})
        self._leg_failed(flight, placed, leg, Unavailable(f"a replica broke the protocol: {wrong}").info())

    def lost_place(self, flight: Flight, replica_id: str, error: ErrorInfo) -> None:
        """Tell the core whose doing ended a placement."""
        self._feed(RequestRefused(flight.request_id, replica_id, error, flight.tokens_sent))

    def has_all(self, flight: Flight) -> bool:
        """Sequences with all their tokens lack nothing but their end. True when that was all the flight lacked."""
        cancels: dict[str, list[str]] = defaultdict(list)
        for placed in tuple(flight.placed.values()):
            if flight.tracks[placed.number].num_tokens >= flight.max_tokens:
                end = SequenceOutput(request_id=placed.sequence_id, finish=FinishReason.LENGTH)
                self._deliver(flight, placed, end, time.monotonic(), cancels)
        self._placements.tell(cancels)
        return flight.ended

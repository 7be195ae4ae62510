"""Replicas' outputs as the client's tokens, and the ends of legs as what the core is told; see `router.deliveries`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import sub

from contracts.cluster_io import (
    ClusterEvent,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RequestEnded,
    RequestRefused,
)
from contracts.errors import ErrorInfo, Unavailable
from contracts.handoff import KVTicket
from contracts.plan import Outcome
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from simulator.clock import Clock
from simulator.flight import Flight
from simulator.observer import Observer
from simulator.placements import Placements


class Deliveries:
    """`feed` hands an event to the core and performs what it says."""

    def __init__(
        self, placements: Placements, clock: Clock, observer: Observer, feed: Callable[[ClusterEvent], None]
    ) -> None:
        self._placements = placements
        self._clock = clock
        self._observer = observer
        self._feed = feed

    def produced(self, replica_id: str, outputs: tuple[SequenceOutput, ...]) -> None:
        """What one step of a replica gave; outputs that nobody wants any more are left out."""
        now = self._clock.now
        by_sequence = self._placements.by_sequence
        alike, last_s, gap_s = 0, -1.0, 0.0  # streams of one batch mostly had their last token at the same time
        for output in outputs:
            flight = by_sequence.get(output.request_id)
            if flight is None:
                continue
            known = flight.num_tokens
            if output.finish is None and output.first_index == known > flight.start_tokens and output.usage is None:
                if known == 1:
                    flight.first_gap_s = flight.longest_gap_s = now - flight.last_s
                else:  # the common case: a stream goes on
                    if flight.last_s != last_s:
                        if alike:
                            self._observer.gap(gap_s, alike)
                        alike, last_s, gap_s = 0, flight.last_s, now - flight.last_s
                    alike += 1
                    flight.longest_gap_s = max(flight.longest_gap_s, gap_s)
                flight.num_tokens = known + len(output.token_ids)
                flight.last_s = now
            else:
                self._take(flight, replica_id, output, now)
        if alike:
            self._observer.gap(gap_s, alike)

    def went_on(self, replica_id: str, sequence_ids: Sequence[str], heard_at: Sequence[float]) -> None:
        """One more token of each of these streams was heard at each of these times."""
        num_steps, first_s, end_s = len(heard_at), heard_at[0], heard_at[-1]
        flights = [flight for flight in map(self._placements.by_sequence.get, sequence_ids) if flight is not None]
        if not flights:
            return
        gaps = list(map(sub, heard_at[1:], heard_at))
        longest_s = max(gaps, default=0.0)
        alike, last_s, gap_s = 0, -1.0, 0.0  # streams of one batch mostly had their last token at the same time
        for flight in flights:
            known = flight.num_tokens
            assert flight.decode_on == replica_id, "a stream goes on elsewhere"
            assert known > flight.start_tokens, "a stream goes on that has not begun"
            if known == 1:
                flight.first_gap_s = first_gap_s = first_s - flight.last_s
                flight.longest_gap_s = max(first_gap_s, longest_s)
            else:
                if flight.last_s != last_s:
                    if alike:
                        self._observer.gap(gap_s, alike)
                    alike, last_s, gap_s = 0, flight.last_s, first_s - flight.last_s
                alike += 1
                flight.longest_gap_s = max(flight.longest_gap_s, gap_s, longest_s)
            flight.num_tokens = known + num_steps
            flight.last_s = end_s
        if alike:
            self._observer.gap(gap_s, alike)
        if gaps:
            self._observer.gaps(gaps, len(flights))

    def reserved(self, replica_id: str, sequence_id: str, ticket: KVTicket) -> None:
        """The decode leg of a request has its blocks."""
        flight = self._placements.by_sequence.get(sequence_id)
        if flight is not None and flight.decode_on == replica_id and flight.ticket is None:
            flight.ticket = ticket
            self._feed(KVReserved(flight.request_id, 0))

    def refused(self, replica_id: str, sequence_id: str, error: ErrorInfo) -> None:
        """A leg was not accepted."""
        flight = self._placements.by_sequence.get(sequence_id)
        if flight is not None:
            self._leg_failed(flight, replica_id, error)

    def _take(self, flight: Flight, replica_id: str, output: SequenceOutput, now: float) -> None:
        """Anything but the next token of a stream: first tokens, ends, and what both legs say."""
        of_decode = flight.decode_on == replica_id
        if not of_decode and flight.prefill_on != replica_id:
            return
        if output.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
            error = output.error or Unavailable(f"replica {replica_id} gave the request up").info()
            self._leg_failed(flight, replica_id, error)
            return
        if output.finish is not None and of_decode:
            flight.decode_on = None
        elif output.finish is not None:
            flight.prefill_on = None
        if output.finish is FinishReason.HANDED_OVER:
            if of_decode:
                return  # the sender's first token was the last one: its word of that comes
            flight.handed_over = True
        elif of_decode or output.finish is not None:
            flight.usage = output.usage or flight.usage
        self._tokens(flight, output, now)
        if output.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self._succeeded(flight, output.finish)

    def _tokens(self, flight: Flight, output: SequenceOutput, now: float) -> None:
        num_new = output.first_index + len(output.token_ids) - flight.num_tokens
        if num_new <= 0:
            return
        assert num_new <= len(output.token_ids), f"{flight.sequence_id}: a token is missing before {output.first_index}"
        started = flight.started
        if flight.first_s is None:
            flight.first_s = now
        else:
            if flight.num_tokens == 1:
                flight.first_gap_s = now - flight.last_s
            else:
                self._observer.gap(now - flight.last_s)
            flight.longest_gap_s = max(flight.longest_gap_s, now - flight.last_s)
        flight.last_s = now
        flight.num_tokens += num_new
        if not started:
            self._feed(FirstTokenSent(flight.request_id))
            self._feed(PrefillFinished(flight.request_id))

    def _leg_failed(self, flight: Flight, replica_id: str, error: ErrorInfo) -> None:
        """A leg ended by its replica's doing. After the first token the prefill leg's fate no longer matters."""
        if flight.decode_on == replica_id:
            flight.decode_on = None
        elif flight.prefill_on == replica_id:
            flight.prefill_on = None
            if flight.started or flight.handed_over:
                return
        else:
            return
        self._placements.end(flight)
        self._feed(RequestRefused(flight.request_id, replica_id, error, flight.num_tokens))

    def _succeeded(self, flight: Flight, finish: FinishReason) -> None:
        self._placements.end(flight)
        usage, first_s, more = flight.usage, flight.first_s, flight.num_tokens - 1
        assert first_s is not None
        outcome = Outcome(
            ttft_s=first_s - flight.arrival.at_s,
            switch_wait_s=None if usage is None else usage.switch_wait_s,
            tpot_s=(flight.last_s - first_s) / more if more else None,
            output_tokens=flight.num_tokens,
            finish=finish.value,
            handoff=None if usage is None else usage.handoff,
        )
        self._placements.forget(flight)
        self._feed(RequestEnded(flight.request_id, outcome))
        self._observer.ended(flight, outcome, None)

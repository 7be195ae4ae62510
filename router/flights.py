"""Which flights there are, and whose output is wanted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from router.call import Call
from router.flight import Flight, SequenceTrack
from router.legs import Leg, PlacedSequence


class Flights:
    """All flights that have not ended, by request id and by the ids of their sequences."""

    def __init__(self) -> None:
        self._by_request: dict[str, Flight] = {}
        self._by_sequence: dict[str, tuple[Flight, PlacedSequence]] = {}
        self._serial = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Flight]:
        return iter(tuple(self._by_request.values()))

    def add(self, call: Call, arrived_s: float) -> list[Flight]:
        """One flight for each prompt of the call."""
        generation = call.generation
        added = []
        for index in range(len(generation.prompts)):
            wanted = request_id = generation.id + (f"-p{index}" if len(generation.prompts) > 1 else "")
            while request_id in self._by_request:  # a client that uses one X-Request-Id twice at the same time
                request_id = f"{wanted}.{next(self._serial)}"
            flight = Flight(request_id, index, call, arrived_s, tracks=[SequenceTrack() for _ in range(generation.n)])
            self._by_request[request_id] = flight
            added.append(flight)
        return added

    def get(self, request_id: str) -> Flight | None:
        """The flight of a client request, if it has not ended."""
        return self._by_request.get(request_id)

    def at(self, replica_id: str | None, sequence_id: str) -> tuple[Flight, PlacedSequence, Leg] | None:
        """A live sequence and its leg on that replica, if it has a live one there."""
        known = self._by_sequence.get(sequence_id)
        if known is None:
            return None
        leg = known[1].leg_on(replica_id)
        return None if leg is None else (*known, leg)

    def that_need(self, replica_id: str) -> list[Flight]:
        """Flights whose placement comes to nothing without a replica."""
        return [flight for flight in self._by_request.values() if flight.needs(replica_id)]

    def placed(self, flight: Flight) -> None:
        """Output of the flight's current placement is wanted from now on."""
        for placed in flight.placed.values():
            self._by_sequence[placed.sequence_id] = (flight, placed)

    def sequence_ended(self, flight: Flight, placed: PlacedSequence) -> None:
        """Nothing more is wanted of a sequence of the current placement."""
        self._by_sequence.pop(placed.sequence_id, None)
        flight.placed.pop(placed.number, None)

    def remove(self, flight: Flight) -> None:
        """The flight has ended; its placement must have. Idempotent."""
        flight.ended = True
        self._by_request.pop(flight.request_id, None)

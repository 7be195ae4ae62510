"""Which flights there are, and whose output is wanted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from router.call import Call, Flight, SequenceTrack


class Flights:
    """All flights that have not ended, by request id and by the ids of their sequences."""

    def __init__(self) -> None:
        self._by_request: dict[str, Flight] = {}
        self._by_sequence: dict[str, tuple[Flight, int]] = {}
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

    def at(self, replica_id: str | None, sequence_id: str) -> tuple[Flight, int] | None:
        """The flight and number of a live sequence, if it is placed on that replica."""
        known = self._by_sequence.get(sequence_id)
        return known if known is not None and known[0].replica_id == replica_id else None

    def on(self, replica_id: str) -> list[Flight]:
        """Flights placed on a replica."""
        return [flight for flight in self._by_request.values() if flight.replica_id == replica_id]

    def placed(self, flight: Flight) -> None:
        """Output of the flight's current placement is wanted from now on."""
        for i, sequence_id in enumerate(flight.sequence_ids()):
            self._by_sequence[sequence_id] = (flight, i)

    def sequence_ended(self, sequence_id: str) -> None:
        """Nothing more is wanted of a sequence."""
        self._by_sequence.pop(sequence_id, None)

    def placement_ended(self, flight: Flight) -> None:
        """Nothing more is wanted of the flight's current placement."""
        for sequence_id in flight.sequence_ids():
            self._by_sequence.pop(sequence_id, None)

    def remove(self, flight: Flight) -> None:
        """The flight has ended. Idempotent."""
        flight.ended = True
        self.placement_ended(flight)
        self._by_request.pop(flight.request_id, None)

"""The transfers of one sender that are under way or just ended, and what they say together of its links' rate. Pure.

Transfers side by side share the way out, so each alone looks slower than the link: what crossed beside one, within the
same time, counts to it. And a transfer of which everything is computed has a link that never rests: what the sender had
under way since then, over the time that passed, is more than the link carries. So a link that fell is known before
anything over it ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_ENDED = 64
SHORTEST_S = 0.05
"""Within less than that nothing is said about a link: acknowledgements take their time."""


@dataclass(slots=True)
class _Open:
    """`computed_at`: from then on nothing of it waits for the engine. `counted`: its measurement has come."""

    peer_id: str
    num_bytes: int
    started: bool = False
    computed_at: float | None = None
    counted: bool = False


@dataclass(slots=True, frozen=True)
class _Ended:
    num_bytes: int
    began_at: float
    ended_at: float


class Flights:
    """Transfers by request, from the grant to the end, and the last `MAX_ENDED` measurements."""

    __slots__ = ("_ended", "_open")

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._ended: deque[_Ended] = deque(maxlen=MAX_ENDED)

    def granted(self, request_id: str, peer_id: str, num_bytes: int) -> None:
        """These bytes will go to that peer."""
        self._open[request_id] = _Open(peer_id, num_bytes)

    def started(self, request_id: str) -> None:
        """What is computed of it goes out from now on."""
        if (flight := self._open.get(request_id)) is not None:
            flight.started = True

    def computed(self, request_id: str, now: float) -> None:
        """All of it can go."""
        if (flight := self._open.get(request_id)) is not None and flight.computed_at is None:
            flight.computed_at = now

    def closed(self, request_id: str) -> None:
        """Nothing more of it goes out."""
        self._open.pop(request_id, None)

    def peer_of(self, request_id: str) -> str | None:
        """Where it goes."""
        flight = self._open.get(request_id)
        return None if flight is None else flight.peer_id

    def peers(self) -> set[str]:
        """Whom something is granted to."""
        return {flight.peer_id for flight in self._open.values()}

    def bytes_to(self, peer_id: str) -> int:
        """Granted and not acknowledged."""
        return sum(flight.num_bytes for flight in self._open.values() if flight.peer_id == peer_id)

    def measured(self, peer_id: str, num_bytes: int, duration_s: float, now: float, *, probe: bool) -> int:
        """A measurement came, of the transfer to that peer that has gone out longest if it is not of a probe. Returns
        the bytes that this sender's other transfers moved within the same time.

        Of those that ended it is known; the open ones are taken to have got as much of the link as this one.
        """
        if not probe:
            own = [f for f in self._open.values() if f.peer_id == peer_id and _goes(f)]
            if own:
                min(own, key=lambda flight: flight.computed_at or 0.0).counted = True
        began_at = now - duration_s
        others = 0.0
        for ended in self._ended:
            shared_s = min(now, ended.ended_at) - max(began_at, ended.began_at)
            if shared_s > 0.0:
                others += ended.num_bytes * shared_s / (ended.ended_at - ended.began_at)
        for flight in self._open.values():
            if _goes(flight) and flight.computed_at is not None:
                shared_s = now - max(began_at, flight.computed_at)
                others += min(flight.num_bytes, num_bytes / duration_s * max(0.0, shared_s))
        self._ended.append(_Ended(num_bytes, began_at, now))
        return int(others)

    def at_most(self, peer_id: str, now: float) -> float | None:
        """Bytes per second that the link to a peer certainly does not exceed, None where nothing says so."""
        found = None
        for flight in self._open.values():
            if flight.peer_id != peer_id or not _goes(flight) or flight.computed_at is None:
                continue
            passed_s = now - flight.computed_at
            if passed_s < SHORTEST_S:
                continue
            moved = sum(other.num_bytes for other in self._open.values() if other.started)
            moved += sum(ended.num_bytes for ended in self._ended if ended.ended_at >= flight.computed_at)
            found = moved / passed_s if found is None else min(found, moved / passed_s)
        return found


def _goes(flight: _Open) -> bool:
    """Whether it is under way, and nothing but the link holds it up."""
    return flight.started and flight.computed_at is not None and not flight.counted

"""What the sending side knows of its links, and when a link is worth a probe.

A probe costs the transfers beside it. So it goes only over a link on which nothing is under way, only when the rate is
not known or stale, one at a time and not often; real transfers keep the estimate fresh for free, also
while they last (`scheduling.link_flights`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts.handoff import LinkView
from contracts.replica_io import LinkDown, LinkMeasured, LinkUp, ProbeLink
from scheduling.config import ReplicaCoreConfig
from scheduling.link_estimate import AGREE, SHORTEST_S, LinkEstimate
from scheduling.link_flights import Flights

MAX_DOWN_LINKS = 64
DOUBT_SHARE = 0.1
FELL = 0.25
"""A link is known to have fallen when what is under way cannot have crossed at this share of its estimate: receivers
are shared, too, by senders that do not know of each other."""
_ROUNDING_S = 1e-6


@dataclass(slots=True, eq=False)
class Link:
    """One peer's link. Counts since it came up. `doubted`: a transfer was much faster or slower than the estimate."""

    peer_id: str
    peer_incarnation: str
    estimate: LinkEstimate
    why_not: str | None = None
    transport: str = ""
    device: str = ""
    latency_s: float = 0.0
    transfers: int = 0
    failed_transfers: int = 0
    probed_at: float | None = None
    doubted: bool = False


class LinkTable:
    """All links of one replica, by peer, and the transfers that were granted on each and not acknowledged yet."""

    __slots__ = ("_flights", "_links", "_probe_peer", "_probed_at")

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._flights = Flights()
        self._probe_peer: str | None = None
        self._probed_at: float | None = None

    def up(self, event: LinkUp, config: ReplicaCoreConfig) -> None:
        """A peer can be sent to. Nothing of an earlier incarnation is kept."""
        link = self._links.get(event.peer_id)
        if link is None or link.peer_incarnation != event.peer_incarnation or link.transport != event.transport:
            estimate = LinkEstimate(config.link_half_life_s, config.link_sample_min_bytes)
            link = Link(event.peer_id, event.peer_incarnation, estimate)
        self._links.pop(event.peer_id, None)
        self._links[event.peer_id] = link
        link.why_not = None
        link.transport, link.device, link.latency_s = event.transport, event.device, event.latency_s
        link.probed_at = None
        if self._probe_peer == event.peer_id:
            self._probe_peer = None

    def down(self, event: LinkDown) -> None:
        """A peer cannot be sent to. Bad news of an earlier incarnation says nothing about the present one."""
        link = self._links.get(event.peer_id)
        if link is not None and link.why_not is None and link.peer_incarnation != event.peer_incarnation:
            return
        if link is None or link.peer_incarnation != event.peer_incarnation:
            link = Link(event.peer_id, event.peer_incarnation, LinkEstimate(1.0, 1))
        self._links.pop(event.peer_id, None)
        self._links[event.peer_id] = link
        link.why_not = event.reason
        if self._probe_peer == event.peer_id:
            self._probe_peer = None
        down = [peer_id for peer_id, other in self._links.items() if other.why_not is not None]
        for peer_id in down[:-MAX_DOWN_LINKS]:
            del self._links[peer_id]

    def measured(self, event: LinkMeasured, now: float) -> None:
        """A transfer or a probe told something about the rate."""
        if event.probe and self._probe_peer == event.peer_id:
            self._probe_peer = None
        link = self._links.get(event.peer_id)
        if link is None or link.why_not is not None or not SHORTEST_S <= event.duration_s < math.inf:
            return
        known, fallen = link.estimate.bytes_per_s, self._fallen_to(link, now)
        beside = self._flights.measured(event.peer_id, event.num_bytes, event.duration_s, now, probe=event.probe)
        num_bytes = event.num_bytes + (0 if event.at_least else beside)
        fell = fallen is not None and known is not None and num_bytes < FELL * known * event.duration_s
        if fell:
            link.estimate.forget()  # what did not arrive in time said so before
        if link.estimate.add(num_bytes, event.duration_s, now, at_least=event.at_least and not fell):
            link.doubted = not event.probe and (link.doubted or _differs(known, num_bytes / event.duration_s))

    def granted(self, request_id: str, peer_id: str, num_bytes: int) -> None:
        """These bytes will go to that peer."""
        self._flights.granted(request_id, peer_id, num_bytes)

    def started(self, request_id: str) -> None:
        """What is computed of it goes out from now on."""
        self._flights.started(request_id)

    def computed(self, request_id: str, now: float) -> None:
        """All of it is computed: from now on only the link holds it up."""
        self._flights.computed(request_id, now)

    def closed(self, request_id: str) -> None:
        """Nothing more of this request goes out."""
        self._flights.closed(request_id)

    def note_transfer(self, request_id: str, *, failed: bool) -> None:
        """Count one hand-off that ended."""
        link = self._links.get(self._flights.peer_of(request_id) or "")
        if link is not None:
            link.transfers += not failed
            link.failed_transfers += failed

    def bytes_in_flight(self, peer_id: str) -> int:
        """Granted to the peer and not acknowledged."""
        return self._flights.bytes_to(peer_id)

    def bytes_per_s(self, peer_id: str) -> float | None:
        """The estimated rate; None for an unknown peer and before the first measurement."""
        link = self._links.get(peer_id)
        return None if link is None else link.estimate.bytes_per_s

    def next_probe(self, config: ReplicaCoreConfig, now: float) -> ProbeLink | None:
        """The probe to send now, if one is due: the link that was measured longest ago, the unmeasured first."""
        if not self._links:
            return None
        if self._probed_at is not None:
            since_s = now - self._probed_at
            wait_s = config.link_probe_gap_s if self._probe_peer is None else config.link_probe_deadline_s
            if since_s < wait_s:
                return None
        busy = self._flights.peers()
        due = [link for link in self._links.values() if link.peer_id not in busy and _is_stale(link, config, now)]
        if not due:
            return None
        link = min(due, key=lambda candidate: _known_until(candidate, now))
        link.probed_at = self._probed_at = now
        self._probe_peer = link.peer_id
        rate = link.estimate.bytes_per_s or 0.0
        wanted = int(rate * config.link_probe_s)
        return ProbeLink(link.peer_id, min(config.link_probe_max_bytes, max(config.link_probe_min_bytes, wanted)))

    def quiet_until(self, config: ReplicaCoreConfig, now: float) -> float:
        """Before this time `next_probe` has nothing to say, unless something is heard of a link or a transfer first."""
        if not self._links:
            return math.inf
        gap_until = now
        if self._probed_at is not None:
            wait_s = config.link_probe_gap_s if self._probe_peer is None else config.link_probe_deadline_s
            gap_until = self._probed_at + wait_s
        stale_at = min((_stale_at(link, config, now) for link in self._links.values()), default=math.inf)
        return max(gap_until, stale_at) - _ROUNDING_S

    def views(self, now: float) -> tuple[LinkView, ...]:
        """What the fleet may know."""
        return tuple([self._view(link, now) for link in self._links.values()]) if self._links else ()

    def _fallen_to(self, link: Link, now: float) -> float | None:
        """What the rate has certainly fallen below, None as long as the estimate may hold."""
        known, most = link.estimate.bytes_per_s, self._flights.at_most(link.peer_id, now)
        return most if known is not None and most is not None and most < FELL * known else None

    def _view(self, link: Link, now: float) -> LinkView:
        fallen = self._fallen_to(link, now)
        return LinkView(
            peer_id=link.peer_id,
            peer_incarnation=link.peer_incarnation,
            why_not=link.why_not,
            transport=link.transport,
            device=link.device,
            bytes_per_s=link.estimate.bytes_per_s if fallen is None else fallen,
            spread=link.estimate.spread if fallen is None else 0.0,
            latency_s=link.latency_s,
            age_s=0.0 if fallen is not None else link.estimate.age_s(now) or 0.0,
            bytes_in_flight=self.bytes_in_flight(link.peer_id),
            transfers=link.transfers,
            failed_transfers=link.failed_transfers,
        )


def _known_until(link: Link, now: float) -> float:
    """When it was last measured or probed; unmeasured and unprobed links come first."""
    age_s = link.estimate.age_s(now)
    measured = float("-inf") if age_s is None else now - age_s
    return measured if link.probed_at is None else max(measured, link.probed_at)


def _differs(known: float | None, found: float) -> bool:
    return known is not None and not known <= AGREE * found <= AGREE * AGREE * known


def _stale_at(link: Link, config: ReplicaCoreConfig, now: float) -> float:
    """When `_is_stale` begins to hold if nothing more is heard of the link."""
    if link.why_not is not None:
        return math.inf
    if link.doubted:
        return now if link.probed_at is None else link.probed_at + DOUBT_SHARE * config.link_stale_s
    return _known_until(link, now) + config.link_stale_s


def _is_stale(link: Link, config: ReplicaCoreConfig, now: float) -> bool:
    """A doubted estimate is worth a probe soon, since a transfer that waits for the engine tells only how fast the
    link is at least; but not after each transfer on a link whose rate varies."""
    if link.doubted and link.why_not is None:
        return link.probed_at is None or now - link.probed_at >= DOUBT_SHARE * config.link_stale_s
    return link.why_not is None and now - _known_until(link, now) >= config.link_stale_s

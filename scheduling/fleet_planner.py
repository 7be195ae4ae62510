"""The fleet planner: from what is asked and what was measured to the best role mix, approached with care.

Every few seconds the demand, the replicas' own step costs and the measured links give what one replica carries in each
role (`fleet_capacity`), and that gives the mix that carries most (`fleet_mixes`). The fleet moves towards it only when
the present mix is near its limit, the other carries clearly more, this is certain (`fleet_certainty`) or was found
several times in a row, and brings in more than the way there costs (`fleet_passage`). Then one replica changes after
the other, each as soon as the one before says its new role. Whoever has least of what its new role does not do changes
first. Pinned replicas never do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from contracts.cluster_io import ClientRequestArrived, ClusterAction
from contracts.phase import Role
from scheduling.cluster_availability import demanded_layout
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_pending import PendingQueue
from scheduling.cluster_replica import ReplicaRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_capacity import RoleRates, Site, role_rates, within
from scheduling.fleet_certainty import certain_gain, certain_rate
from scheduling.fleet_decisions import FleetDecisions
from scheduling.fleet_mixes import Bounds, Mix, best_mix, carried
from scheduling.fleet_passage import FREE_SHARE, Passage, gained, passage
from scheduling.fleet_site import COLLAPSED, decoding_now, link_rate, poolable, site_of
from scheduling.fleet_workload import Demand, DemandEstimate
from scheduling.role_changes import RoleChanges

BUILD_ORDER = (Role.DECODE, Role.PREFILL, Role.ALTERNATING, Role.MIXED)
"""A decode replica without a prefill replica can still serve whole requests; a prefill replica alone is no use."""
SAYS_S = 1.0
"""A replica that does not say its new role within so long is not waited for."""
MOVES = 4
"""From the times of so many changes of the mix it is told how long the next one may last."""


class FleetPlanner:
    """Holds what was found so far; `time_passed` is to be asked a few times a second."""

    def __init__(
        self,
        config: ClusterCoreConfig,
        fleet: Fleet,
        roles: RoleChanges,
        decisions: FleetDecisions,
        estimate: DemandEstimate,
        pending: PendingQueue,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._roles = roles
        self._decisions = decisions
        self._estimate = estimate
        self._pending = pending
        self._goal: Mix | None = None
        self._found: tuple[Mix | None, int] = (None, 0)
        self._evaluated_at: float | None = None
        self._changed_at: float | None = None
        self._reached_at: float | None = None
        self._moved_at: deque[float] = deque(maxlen=MOVES)
        self._link: float | None = None
        self.demand: Demand | None = None
        self.capacity: float | None = None
        self.utilisation: float | None = None

    @property
    def goal(self) -> Mix | None:
        """The mix that the fleet is being moved towards, if any."""
        return self._goal

    def arrived(self, asked: ClientRequestArrived, now: float) -> None:
        """A request came."""
        if self._config.planner.enabled:
            self._estimate.arrived(asked, now)

    def ended(self, prompt_tokens: int, output_tokens: float, now: float) -> None:
        """A sequence ended by itself."""
        if self._config.planner.enabled:
            self._estimate.ended(prompt_tokens, output_tokens, now)

    def output_tokens(self, now: float) -> float | None:
        """How many tokens a stream that runs still has to come, on average; None when the planner is off."""
        if not self._config.planner.enabled:
            return None
        ended = self._estimate.ended_tokens(now)
        return ended if self.demand is None else max(self.demand.output_tokens, ended)

    def time_passed(self, now: float) -> list[ClusterAction]:
        """Evaluate when it is due, and make the next change towards the goal when that is."""
        config = self._config.planner
        if not config.enabled:
            return []
        if self._evaluated_at is None or now >= self._evaluated_at + config.every_s or self._link_fell(now):
            self._evaluated_at = now
            self._evaluate(now)
        if self._goal is None or self._goal.total != len(self._members()) or not self._may_change(now):
            return []
        return self._approach(now)

    def _link_fell(self, now: float) -> bool:
        """Whether the links carry far less than at the last evaluation: that does not wait for the next one."""
        if self._link is None:
            return False
        rate = link_rate(self._members(), self._fleet, self._config, now)
        return rate is not None and rate < COLLAPSED * self._link

    def _may_change(self, now: float) -> bool:
        """Whether the last change was long enough ago, and is done: with two under way nobody may be left to serve."""
        if self._changed_at is None:
            return True
        pause_s = self._config.planner.change_every_s
        if any(record.wanted_role is not None for record in self._members()):
            pause_s = max(SAYS_S, pause_s)
        return now >= self._changed_at + pause_s

    def _evaluate(self, now: float) -> None:
        members = self._members()
        if self._goal is not None and self._goal.total != len(members):
            self._goal = None  # it was for the fleet as it was before a replica came or went
        site = site_of(members, self._fleet, self._config, now)
        self._link = None if site is None else site.link_bytes_per_s
        if site is None:
            self.demand = self.capacity = self.utilisation = self._goal = None
            return
        running, step_s = decoding_now([record.view for record in members])
        self.demand = demand = self._estimate.at(now, running, step_s, site.cost.a1 / len(members))
        if demand is None:
            self.capacity = self.utilisation = self._goal = None
            self._found = (None, 0)
            return
        rates = within(role_rates(demand, site), demanded_layout(None, self._config))
        present = Mix.of([self._roles.wanted(record) for record in members])
        self.capacity = carried(present, rates)
        self.utilisation = demand.rate / self.capacity if self.capacity > 0.0 else None
        self._settle(present, best_mix(present, rates, self._bounds(members)), demand, rates, site, now)

    def _settle(self, present: Mix, best: Mix, demand: Demand, rates: RoleRates, site: Site, now: float) -> None:
        """Confirm a goal, keep it, or drop it."""
        config = self._config.planner
        now_carried, then_carried = carried(present, rates), carried(best, rates)
        if self._goal is not None:
            if carried(self._goal, rates) >= now_carried:
                return  # on the way; another goal would have to wait until this one is reached
            self._goal = None
        near_limit = demand.rate > config.near_limit * now_carried or self._queued_s() > demand.slo.ttft_s
        wanted = best != present and (
            (demand.rate > config.comfort * now_carried and then_carried >= config.gain * now_carried)
            or (near_limit and then_carried >= config.any_gain * now_carried)
        )
        held = self._reached_at is not None and now < self._reached_at + config.hold_s
        held = held and demand.rate < config.drastic * now_carried  # a link that fell does not wait
        if not wanted or held:
            self._found = (None, 0)
            return
        within_s = self._pays_within_s(now)
        way = self._way(best, demand, rates, site, now)
        certain = way.lasts_s <= FREE_SHARE * within_s or self._is_certain(present, best, demand, now_carried, site)
        too_soon = self._estimate.is_young(now) and not certain and then_carried < config.drastic * now_carried
        if too_soon or gained(demand.rate, now_carried, then_carried, way, within_s, config.comfort) <= 0.0:
            self._found = (None, 0)
            return
        mix, times = self._found
        self._found = (best, times + 1 if mix is not None and _alike(mix, best) else 1)
        if certain or self._found[1] >= config.confirm:
            self._goal, self._found = best, (None, 0)
            self._moved_at.append(now)
            self._tell(present, best, demand, rates, site, now)

    def _way(self, best: Mix, demand: Demand, rates: RoleRates, site: Site, now: float) -> Passage:
        views = [record.view for record in self._members()]
        return passage(views, best, demand, rates, site, self.output_tokens(now) or demand.output_tokens)

    def _pays_within_s(self, now: float) -> float:
        """How long a change has to bring in what the way there costs: until the load may be another one again."""
        within_s = self._config.planner.pays_within_s
        if len(self._moved_at) < 2:
            return within_s
        return min(within_s, (now - self._moved_at[0]) / len(self._moved_at))

    def _is_certain(self, present: Mix, best: Mix, demand: Demand, now_carried: float, site: Site) -> bool:
        """Whether the present mix is over its comfort and the other one better, whatever the error of the estimate."""
        config = self._config.planner
        if certain_rate(demand) <= config.comfort * now_carried:
            return False
        return certain_gain(present, best, demand, site, demanded_layout(None, self._config)) >= config.any_gain

    def _queued_s(self) -> float:
        """Prefill that waits, in seconds of each replica."""
        members = self._members()
        return (self._pending.prefill_s + sum(record.backlog_s for record in members)) / max(1, len(members))

    def _approach(self, now: float) -> list[ClusterAction]:
        """Give one more replica its role, or note that the goal is reached or cannot be."""
        assert self._goal is not None
        members = self._members()
        present = Mix.of([self._roles.wanted(record) for record in members])
        step = self._next_change(members, present, self._goal)
        if step is None:
            if present != self._goal:
                told = f"{self._goal.in_words()} cannot be reached from {present.in_words()}: nobody left may change"
                self._decisions.note(now, "mix_given_up", told)
            self._goal, self._reached_at = None, now
            return []
        record, role = step
        self._changed_at = now
        reason = f"the planner moves towards {self._goal.in_words()}"
        return self._roles.request(record.replica_id, role, now, pinned=False, reason=reason)

    def _next_change(
        self, members: Sequence[ReplicaRecord], present: Mix, goal: Mix
    ) -> tuple[ReplicaRecord, Role] | None:
        """Whose role changes next, of those of a role there are too many of.

        What a replica has stays with it: a decode replica goes on with its streams but should have no prompts queued,
        any other one has its time for prompts but for the streams that it has left.
        """
        for role in BUILD_ORDER:
            if goal.of_role(role) <= present.of_role(role):
                continue
            spare = [
                record
                for record in members
                if present.of_role(had := self._roles.wanted(record)) > goal.of_role(had)
                and record.wanted_role is None
                and not self._roles.is_pinned(record.replica_id)
                and self._roles.why_not(record.replica_id, role) is None
            ]
            if spare:
                if role is Role.DECODE:
                    return min(spare, key=lambda r: (r.backlog_s, -r.view.running, r.replica_id)), role
                return min(spare, key=lambda r: (r.view.running, r.backlog_s, r.replica_id)), role
        return None

    def _members(self) -> list[ReplicaRecord]:
        return [record for record in self._fleet if not record.draining]

    def _bounds(self, members: Sequence[ReplicaRecord]) -> Bounds:
        pinned = [self._roles.wanted(r) for r in members if self._roles.is_pinned(r.replica_id)]
        return Bounds(
            total=len(members),
            poolable=poolable(members, self._fleet),
            pinned=Mix.of(pinned),
            layout=demanded_layout(None, self._config),
        )

    def _tell(self, present: Mix, goal: Mix, demand: Demand, rates: RoleRates, site: Site, now: float) -> None:
        carries, would = carried(present, rates), carried(goal, rates)
        link = site.link_bytes_per_s
        reason = (
            f"{demand.rate:.2f} requests/s of {demand.prompt_tokens:.0f} prompt and {demand.output_tokens:.0f} output "
            f"tokens: {present.in_words()} carries {carries:.2f}/s, {goal.in_words()} would carry {would:.2f}/s; a "
            f"replica carries {rates.alternating:.2f}/s alternating, {rates.mixed:.2f} mixed, {rates.prefill:.2f} "
            f"as prefill, {rates.decode:.2f} as decode, "
            + ("no link" if link is None else f"the link {link / 1e6:.1f} MB/s")
        )
        numbers = {
            "rate_per_s": demand.rate,
            "prompt_tokens": demand.prompt_tokens,
            "output_tokens": demand.output_tokens,
            "carries_per_s": carries,
            "would_carry_per_s": would,
            "link_bytes_per_s": 0.0 if link is None else link,
        }
        self._decisions.note(now, "mix", reason, None, **numbers)


def _alike(one: Mix, other: Mix) -> bool:
    """Whether two goals found one after the other differ by one replica at most: estimates move."""
    return sum(abs(one.of_role(role) - other.of_role(role)) for role in Role) <= 2

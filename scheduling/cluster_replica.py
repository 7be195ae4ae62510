"""One live replica as the cluster core knows it: its last view, and what was sent there since."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from contracts.handoff import LinkView
from contracts.phase import Phase, Role
from contracts.views import ReplicaIdentity, ReplicaView
from scheduling.admission_rules import AdmissionRule, Budget
from scheduling.cluster_requests import Leg, RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.on_its_way import OnItsWay, on_its_way
from scheduling.plan_inputs import Load, Turn
from scheduling.plan_slack import allowed_slack_s

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING = Role.ALTERNATING
_MIXED = Role.MIXED
_PREFILL_PHASE = Phase.PREFILL
_PREFILL_FIRST = Budget.PREFILL_FIRST
WHOLE = frozenset({_ALTERNATING, _MIXED})
"""Roles of replicas that are there to serve requests whole."""
POOLS = frozenset({Role.PREFILL, Role.DECODE})
"""Roles of replicas that hand KV over."""


@dataclass(slots=True)
class ReplicaRecord:
    """One live replica. `placed` holds the leg of every request that has one here and has not ended; `unacked` those
    of them that the last view does not count yet (views lag). `window` holds when the TTFT target of each member of
    the current prefill window ends, until nothing is left to prefill; members that then still wait for their first
    decode step are covered by `switch_due_at`, from the view. `turn` is its turn, or its last one.
    `lease_until` is when the prefill lease ends, `forced_at` when the next late prompt may be forced upon the streams
    here. `macro_instance` names the one in which it takes turns.
    `drain_requested`: it was told to leave. `wanted_role`: it was told to have this one, and its view does not say so
    yet. Whatever changes here puts its id into `touched` and `unsorted`.
    """

    identity: ReplicaIdentity
    view: ReplicaView
    view_at: float
    last_submit_index: int
    placed: dict[str, Leg] = field(default_factory=dict)
    unacked: dict[str, Leg] = field(default_factory=dict)
    lease_until: float | None = None
    forced_at: float = 0.0
    macro_instance: str | None = None
    drain_requested: bool = False
    wanted_role: Role | None = None
    touched: set[str] = field(default_factory=set)
    unsorted: set[str] = field(default_factory=set)
    window: dict[str, float] = field(default_factory=dict)
    switch_due_at: float | None = None
    turn: Turn | None = None
    _load: Load | None = None
    _load_until: float = 0.0
    _load_reserve: int = 0
    _links: Mapping[str, LinkView] | None = None
    _on_its_way: OnItsWay | None = None

    @property
    def replica_id(self) -> str:
        """Its name."""
        return self.identity.replica_id

    @property
    def serves_whole(self) -> bool:
        """Whether its role is to serve requests whole."""
        role = self.view.role
        return role is _MIXED or role is _ALTERNATING

    @property
    def draining(self) -> bool:
        """Whether it is to leave, or leaves already: nothing new comes here."""
        return self.drain_requested or self.view.draining

    @property
    def becomes(self) -> Role | None:
        """The role that it was told to have, if that is not for what it is given to do now."""
        if (wanted := self.wanted_role) is None:
            return None
        role = self.view.role
        return None if wanted is role or {wanted, role} <= WHOLE else wanted

    @property
    def backlog_s(self) -> float:
        """Predicted prefill time accepted or on its way, not done. What comes shares the steps of what waits there."""
        return self.on_its_way.backlog_s

    @property
    def on_its_way(self) -> OnItsWay:
        """What the view does not count yet. Kept while nothing changes."""
        if self._on_its_way is None:
            self._on_its_way = on_its_way(self.view, self.unacked.values())
        return self._on_its_way

    @property
    def has_prefill_work(self) -> bool:
        """Whether any prompt waits here or is on its way."""
        return self.view.waiting > 0 or self.view.backlog_s > 0 or self.on_its_way.prompts > 0

    @property
    def free_blocks(self) -> int:
        """KV blocks left after everything accepted or on its way."""
        view = self.view
        return view.free_blocks - -(-view.waiting_tokens // view.block_size) - self.on_its_way.blocks

    @property
    def links(self) -> Mapping[str, LinkView]:
        """The links that its last view tells of, by peer."""
        if self._links is None:
            self._links = {link.peer_id: link for link in self.view.links}
        return self._links

    def report(self, view: ReplicaView, now: float) -> None:
        """Take a newer view: forget what it counts, and close the prefill window once nothing is left to prefill."""
        self.view = view
        self.view_at = now
        self.switch_due_at = None if view.switch_left_s is None else now + view.switch_left_s
        self._links = None
        self.last_submit_index = max(self.last_submit_index, view.acked_submit_index)
        acked = view.acked_submit_index
        if self.unacked:
            for name in [name for name, leg in self.unacked.items() if leg.unsent == 0 and leg.submit_index <= acked]:
                del self.unacked[name]
        self.touch()
        if self.window and not self.has_prefill_work:
            self.window.clear()

    def place(self, leg: Leg, now: float, config: ClusterCoreConfig) -> None:
        """Count a leg that is being sent here at once; it gets the next submit index.

        A window must end within the TTFT target of each member, except of best-effort ones, which are late anyhow.
        """
        record = leg.record
        if leg.prefill_s > 0 and self.serves_whole:
            if record.best_effort:
                self.forced_at = now + (self.backlog_s + leg.prefill_s) / config.forced_share
            self.window[record.request_id] = math.inf if record.best_effort else record.ttft_deadline_at
            if self.view.role is _ALTERNATING:
                self._count_in_turn(leg, now)
        self.announce(leg)
        leg.submit_index = self.next_submit_index()

    def begin_turn(self, now: float) -> None:
        """The turn of its macro instance comes to this replica."""
        slack_s = allowed_slack_s(self.view, 1.0)
        self.turn = Turn(began_at=now, slack_s=slack_s, free_blocks=self.view.free_blocks)
        self.touch()

    def _count_in_turn(self, leg: Leg, now: float) -> None:
        if self.turn is None:
            self.begin_turn(now)
        assert self.turn is not None
        block_size = self.view.block_size
        self.turn = msgspec.structs.replace(
            self.turn,
            members=self.turn.members + 1,
            prefill_s=self.turn.prefill_s + leg.prefill_s,
            blocks=self.turn.blocks + (leg.waiting_tokens + block_size) // block_size,
        )

    def announce(self, leg: Leg) -> None:
        """Count a leg from now on; its sequences are sent later."""
        self.placed[leg.record.request_id] = leg
        self.unacked[leg.record.request_id] = leg
        self.touch()

    def next_submit_index(self) -> int:
        """The number of the submission that is being made."""
        self.last_submit_index += 1
        return self.last_submit_index

    def forget(self, record: RequestRecord) -> None:
        """The request is no longer here. Idempotent, and harmless for a namesake's replacement."""
        leg = self.placed.get(record.request_id)
        if leg is not None and leg.record is record:
            del self.placed[record.request_id]
            self.unacked.pop(record.request_id, None)
            self.window.pop(record.request_id, None)
            self.touch()

    def touch(self) -> None:
        """What is here has changed: the load is made anew when next asked for."""
        self._load = None
        self._on_its_way = None
        name = self.identity.replica_id
        self.touched.add(name)
        self.unsorted.add(name)

    def switch_wait_s(self, record: RequestRecord) -> float:
        """Predicted time from a prompt's first token to its first decode step, were it placed here now: members of the
        window whose targets end later are prefilled after it."""
        due_at = record.ttft_deadline_at
        later = (self.placed[name] for name, ends_at in self.window.items() if ends_at > due_at)
        return sum(leg.prefill_s for leg in later if not leg.record.prefill_finished)

    def load(self, closed: str | None, valid_until: float, now: float, reserve: int, rule: AdmissionRule) -> Load:
        """What placement sees of this replica. Kept while nothing changes, until `valid_until` (when it would close)
        or the end of its window. `reserve` is the output length expected, in tokens. Windows are those of replicas that
        take turns."""
        if closed is not None or (kept := self.kept_load(now, reserve)) is None:
            kept = self._load = self._new_load(closed, now, reserve, rule)
            due_at = kept.window_due_at
            self._load_until = valid_until if due_at is None else min(valid_until, due_at)
            self._load_reserve = reserve
        return kept

    @property
    def load_reserve(self) -> int:
        """The output length that the load was last made for."""
        return self._load_reserve

    def kept_load(self, now: float, reserve: int) -> Load | None:
        """The load as last made, if it still holds. Output lengths by which streams take as many blocks are alike."""
        if now > self._load_until:
            return None
        if reserve != self._load_reserve and self._growth_blocks(reserve) != self._growth_blocks(self._load_reserve):
            return None
        return self._load

    def _growth_blocks(self, reserve: int) -> int:
        """KV blocks that a running stream still takes: it is taken to be half-way on average."""
        return -(-reserve // (2 * self.view.block_size))

    def _new_load(self, closed: str | None, now: float, reserve: int, rule: AdmissionRule) -> Load:
        view, sent, identity = self.view, self.on_its_way, self.identity
        alternates = view.role is _ALTERNATING
        tightest_s = allowed_slack_s(view, 0.0)
        free_blocks = self.free_blocks
        layout = identity.fingerprint.layout
        return Load(
            replica_id=identity.replica_id,
            role=view.role,
            cost=view.cost,
            backlog_s=sent.backlog_s,
            running=view.running,
            waiting=view.waiting + sent.sequences,
            decode_step_s=view.decode_step_s,
            slack_s=tightest_s if rule.level == 0.0 else allowed_slack_s(view, rule.level),
            tightest_slack_s=tightest_s,
            free_blocks=free_blocks,
            spare_blocks=free_blocks - view.running * self._growth_blocks(reserve),
            num_blocks=view.num_blocks,
            block_size=view.block_size,
            max_running=identity.max_running,
            max_waiting=identity.max_waiting,
            window_due_at=self._window_due_at(now) if alternates else None,
            forced_at=self.forced_at,
            closed=closed,
            viewed_at=self.view_at,
            incarnation=identity.incarnation,
            waiting_tokens=view.waiting_tokens + sent.tokens,
            sending=view.sending,
            kv_bytes_per_token=layout.bytes_per_token,
            num_layers=layout.num_layers,
            macro_instance=self.macro_instance,
            window_s=sum([self.placed[name].prefill_s for name in self.window]) if alternates else 0.0,
            turn=self.turn,
            starved_s=view.starved_s,
            late_backlog_s=view.late_backlog_s,
            joins=sent.joins,
            step_left_s=view.decode_step_s / 2 if view.running and view.phase is not _PREFILL_PHASE else 0.0,
            rides=view.role is _MIXED and view.running > 0 and rule.budget is not _PREFILL_FIRST,
            guarded=view.guarded,
        )

    def _window_due_at(self, now: float) -> float | None:
        """When the earliest target of the window ends. One already missed, or given up, protects nothing."""
        due = [due_at for due_at in self.window.values() if now < due_at < math.inf]
        if self.switch_due_at is not None and self.switch_due_at > now:
            due.append(self.switch_due_at)
        return min(due, default=None)

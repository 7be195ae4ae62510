"""One live replica as the cluster core knows it: its last view, and what was sent there since."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from contracts.handoff import LinkView
from contracts.phase import Phase, Role
from contracts.views import ReplicaIdentity, ReplicaView
from scheduling.admission_rules import Budget
from scheduling.cluster_requests import Leg, RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Load, Turn
from scheduling.plan_slack import allowed_slack_s

WHOLE = frozenset({Role.ALTERNATING, Role.MIXED})
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
    yet. Whatever changes here puts its id into `touched`.
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
    window: dict[str, float] = field(default_factory=dict)
    switch_due_at: float | None = None
    turn: Turn | None = None
    _load: Load | None = None
    _load_key: tuple[float, int] = (0.0, 0)
    _links: Mapping[str, LinkView] | None = None
    _has_work: bool | None = None

    @property
    def replica_id(self) -> str:
        """Its name."""
        return self.identity.replica_id

    @property
    def serves_whole(self) -> bool:
        """Whether its role is to serve requests whole."""
        return self.view.role in WHOLE

    @property
    def draining(self) -> bool:
        """Whether it is to leave, or leaves already: nothing new comes here."""
        return self.drain_requested or self.view.draining

    @property
    def becomes(self) -> Role | None:
        """The role that it was told to have, if that is not for what it is given to do now."""
        wanted, role = self.wanted_role, self.view.role
        return None if wanted is None or wanted is role or {wanted, role} <= WHOLE else wanted

    @property
    def backlog_s(self) -> float:
        """Predicted prefill time accepted or on its way, not done. What comes shares the steps of what waits there."""
        on_its_way = self._on_its_way()
        alone_s = sum(leg.prefill_s for leg in on_its_way)
        return max(0.0, self.view.backlog_s) + alone_s - sum(leg.shared_s for leg in on_its_way[self._starts() :])

    def _on_its_way(self) -> list[Leg]:
        """Prompts that the view does not count yet, in the order in which they were sent."""
        return [leg for leg in self.unacked.values() if leg.prefill_s > 0.0 and not leg.record.prefill_finished]

    def _starts(self) -> int:
        """How many prompts that come have no other to share a step with: an idle replica begins with the first at once,
        and whatever comes meanwhile is in the next step."""
        view = self.view
        return 0 if view.waiting else 1 if view.running or view.backlog_s > 0.0 else 2

    @property
    def has_prefill_work(self) -> bool:
        """Whether any prompt waits here or is on its way. Kept while nothing changes: asked after every event."""
        if self._has_work is None:
            on_its_way = any(leg.prefill_s > 0 and not leg.record.prefill_finished for leg in self.unacked.values())
            self._has_work = on_its_way or self.view.waiting > 0 or self.view.backlog_s > 0
        return self._has_work

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
        for name in [name for name, leg in self.unacked.items() if leg.unsent == 0 and leg.submit_index <= acked]:
            del self.unacked[name]
        self.touch()
        if not self.has_prefill_work:
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
        self._has_work = None
        self.touched.add(self.replica_id)

    def switch_wait_s(self, record: RequestRecord) -> float:
        """Predicted time from a prompt's first token to its first decode step, were it placed here now: members of the
        window whose targets end later are prefilled after it."""
        due_at = record.ttft_deadline_at
        later = (self.placed[name] for name, ends_at in self.window.items() if ends_at > due_at)
        return sum(leg.prefill_s for leg in later if not leg.record.prefill_finished)

    def load(self, closed: str | None, valid_until: float, now: float, reserve: int, config: ClusterCoreConfig) -> Load:
        """What placement sees of this replica. Kept while nothing changes, until `valid_until` (when it would close)
        or the end of its window. `reserve` is the output length expected, in tokens."""
        if self._load is None or closed is not None or self._load_key[1] != reserve or now > self._load_key[0]:
            self._load = self._new_load(closed, now, reserve, config)
            due_at = self._load.window_due_at
            self._load_key = (valid_until if due_at is None else min(valid_until, due_at), reserve)
        return self._load

    @property
    def load_reserve(self) -> int:
        """The output length that the load was last made for."""
        return self._load_key[1]

    def kept_load(self, now: float, reserve: int) -> Load | None:
        """The load as last made, if it still holds."""
        return self._load if now <= self._load_key[0] and self._load_key[1] == reserve else None

    def _new_load(self, closed: str | None, now: float, reserve: int, config: ClusterCoreConfig) -> Load:
        """A running stream is taken to be half-way on average."""
        view = self.view
        unacked_sequences = unacked_blocks = unacked_tokens = 0
        for leg in self.unacked.values():
            unacked_sequences += leg.record.asked.num_sequences
            unacked_blocks += leg.blocks
            unacked_tokens += leg.waiting_tokens
        waiting_blocks = -(-view.waiting_tokens // view.block_size)
        free_blocks = view.free_blocks - waiting_blocks - unacked_blocks
        layout = self.identity.fingerprint.layout
        return Load(
            replica_id=self.replica_id,
            role=view.role,
            cost=view.cost,
            backlog_s=self.backlog_s,
            running=view.running,
            waiting=view.waiting + unacked_sequences,
            decode_step_s=view.decode_step_s,
            slack_s=allowed_slack_s(view, config.rule.level),
            tightest_slack_s=allowed_slack_s(view, 0.0),
            free_blocks=free_blocks,
            spare_blocks=free_blocks - view.running * -(-reserve // (2 * view.block_size)),
            num_blocks=view.num_blocks,
            block_size=view.block_size,
            max_running=self.identity.max_running,
            max_waiting=self.identity.max_waiting,
            window_due_at=self._window_due_at(now),
            forced_at=self.forced_at,
            closed=closed,
            viewed_at=self.view_at,
            incarnation=self.identity.incarnation,
            waiting_tokens=view.waiting_tokens + unacked_tokens,
            sending=view.sending,
            kv_bytes_per_token=layout.bytes_per_token,
            num_layers=layout.num_layers,
            macro_instance=self.macro_instance,
            window_s=sum(self.placed[name].prefill_s for name in self.window),
            turn=self.turn,
            starved_s=view.starved_s,
            joins=len(self._on_its_way()) >= self._starts(),
            step_left_s=view.decode_step_s / 2 if view.running and view.phase is not Phase.PREFILL else 0.0,
            rides=view.role is Role.MIXED and view.running > 0 and config.rule.budget is not Budget.PREFILL_FIRST,
        )

    def _window_due_at(self, now: float) -> float | None:
        """When the earliest target of the window ends. One already missed, or given up, protects nothing."""
        due = [due_at for due_at in self.window.values() if now < due_at < math.inf]
        if self.switch_due_at is not None and self.switch_due_at > now:
            due.append(self.switch_due_at)
        return min(due, default=None)

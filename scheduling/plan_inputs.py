"""What a plan is made from and what it becomes: one request asking, the loads of the fleet, one candidate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from contracts.handoff import LinkView
from contracts.phase import Layout, Role
from contracts.plan import FallbackKind
from contracts.request import Slo
from contracts.views import StepCost


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request that wants a place at `now`. `waited_s` runs from its arrival, or from when it lost its place while
    it streamed; `prompt_tokens` counts what was generated then. `reserve_tokens` is the output expected.

    `yields` says that more urgent requests wait, which need the slack there is. `layout` is the one demanded, None for
    any; `may_fall_back` allows another when it, or a hand-off, cannot be had. `avoid` are replicas that refused the
    request just now, `avoid_pairs` those (prefill, decode) between which its hand-off failed. `no_handoff`:
    after hand-offs that failed it is to be computed in one place. `cached` are the tokens of its prompt that replicas
    are known to have in their prefix caches, by replica; those that have none are left out.
    """

    now: float = 0.0
    prompt_tokens: int
    num_sequences: int
    reserve_tokens: int
    slo: Slo
    waited_s: float
    yields: bool = False
    layout: Layout | None = None
    may_fall_back: bool = True
    avoid: frozenset[str] = frozenset()
    avoid_pairs: frozenset[tuple[str, str]] = frozenset()
    no_handoff: bool = False
    cached: Mapping[str, int] = {}

    def cached_on(self, replica_id: str) -> int:
        """Tokens that a replica need not compute."""
        return self.cached.get(replica_id, 0) if self.cached else 0

    @property
    def ttft_left_s(self) -> float:
        """What is left of the TTFT target, in seconds; negative when it has passed."""
        return self.slo.ttft_s - self.waited_s


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An alternating replica's turn in its macro instance, for the published rules: when it `began_at`, the greatest
    slack of a running stream and the free KV blocks then, and the prompts it has been given since.

    `slack_s` is None when no stream was running. `prefill_s` and `blocks` (of the prompts) are those of all `members`.
    """

    began_at: float
    slack_s: float | None
    free_blocks: int
    members: int = 0
    prefill_s: float = 0.0
    blocks: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as placement sees it: its last view plus what was sent there since.

    `backlog_s` is predicted prefill time not done yet, `late_backlog_s` what of it is for late prompts of a
    mixed replica that decodes. `slack_s` is what the slack rule allows a window to take from
    the running streams, `tightest_slack_s` the slack of the tightest of them; both None without running streams.
    `free_blocks` is what is left after everything accepted or on its way, `spare_blocks` what is left of that after
    the running streams have grown to the length expected. `window_due_at` is when the current prefill window
    must have ended for its earliest member, None outside a window. Until `forced_at` no further late prompt may be
    forced upon the running streams. `closed` says why nothing may be placed here, else None. `viewed_at` is when the
    view came.

    For hand-offs: `waiting_tokens` of prompts that wait or are on their way, `sending` sequences whose KV is still
    crossing, `kv_bytes_per_token` and `num_layers` of the model. `macro_instance`: the one in which it takes turns.

    `starved_s` is how long the current window has kept streams waiting, as of the view. `step_left_s` is what the
    decode step in flight has left on average. `joins`: a prompt would share its step with others that wait. `rides`:
    chunks ride in decode steps, which pay the fixed part of a step; `backlog_s` is without it then. `guarded` sequences
    of an earlier role still decode there or will.

    `window_s` is the predicted prefill time of all prompts of the current window, done or not; `turn` is its turn, or
    its last one.
    """

    replica_id: str
    role: Role
    cost: StepCost
    backlog_s: float
    running: int
    waiting: int
    decode_step_s: float
    slack_s: float | None
    tightest_slack_s: float | None
    free_blocks: int
    spare_blocks: int
    num_blocks: int
    block_size: int
    max_running: int
    max_waiting: int
    window_due_at: float | None
    forced_at: float
    closed: str | None
    viewed_at: float
    incarnation: str
    waiting_tokens: int
    sending: int
    kv_bytes_per_token: int
    num_layers: int
    macro_instance: str | None = None
    window_s: float = 0.0
    turn: Turn | None = None
    step_left_s: float = 0.0
    starved_s: float = 0.0
    late_backlog_s: float = 0.0
    joins: bool = False
    rides: bool = False
    guarded: int = 0

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return self.running == 0 and self.waiting == 0


class FleetLoads(msgspec.Struct, frozen=True, kw_only=True):
    """All live replicas by role. `rings` holds the alternating ones: one ring for each macro instance, in cyclic order
    from the one whose turn it is, and the macro instance that took the last request first. The others are in order of
    id. `links` are those of each prefill replica, by its id and the peer's."""

    rings: Sequence[Sequence[Load]] = ()
    mixed: Sequence[Load] = ()
    prefill: Sequence[Load] = ()
    decode: Sequence[Load] = ()
    links: Mapping[str, Mapping[str, LinkView]] = {}

    @property
    def alternating(self) -> Iterator[Load]:
        """The loads of all rings."""
        return chain.from_iterable(self.rings)


class PlannedHandoff(msgspec.Struct, frozen=True, kw_only=True):
    """The hand-off of a disaggregated candidate: `num_bytes` at `bytes_per_s`, for `transfer_s` in all, of which
    `exposed_s` after the prefill. `link_age_s` is None for a link never measured; a hand-off is not `sustainable` when
    a busy replica prefills faster than the link carries."""

    giver: Load
    num_bytes: int
    bytes_per_s: float
    link_age_s: float | None
    transfer_s: float
    exposed_s: float
    sustainable: bool


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that could be carried out now, in numbers; `scheduling.plan_reason` puts it into words.

    `load` is where it decodes. `prefill_s` is the prompt's predicted prefill time alone, `ttft_s` counts from arrival,
    `switch_wait_s` from the first token to the first decode step, `harm_s` is how late the
    tightest running stream would be. `cost_s` is what it takes from the fleet: replica-seconds of prefill plus
    stream-seconds of slack spent, plus a transfer. `meets` says that both targets are predicted to be met;
    `cached_tokens` are those of the prompt that need not be computed.
    `best_effort` that the request is placed although they are not, `settled` that the admission rule would have it so
    in any case. `fallback` says what could not be had,
    `fallback_kind` why in short, `beats` what it was compared with.
    """

    layout: Layout
    load: Load
    prefill_s: float
    ttft_s: float
    tpot_s: float
    harm_s: float
    cost_s: float
    meets: bool
    best_effort: bool = False
    switch_wait_s: float = 0.0
    handoff: PlannedHandoff | None = None
    fallback: str | None = None
    fallback_kind: FallbackKind | None = None
    beats: str | None = None
    settled: bool = False
    cached_tokens: int = 0

    @property
    def ready_s(self) -> float:
        """From arrival until it decodes: a switch wait counts into the TTFT target."""
        return self.ttft_s + self.switch_wait_s

"""What a plan is made from and what it becomes: one request asking, one load per replica, one candidate."""

from __future__ import annotations

import msgspec

from contracts.phase import Layout, Role
from contracts.request import Slo
from contracts.views import StepCost


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request that wants a place. `waited_s` runs from its arrival; `reserve_tokens` is the output expected.

    `yields` says that more urgent requests wait, which need the slack there is.
    """

    prompt_tokens: int
    num_sequences: int
    reserve_tokens: int
    slo: Slo
    waited_s: float
    yields: bool = False

    @property
    def ttft_left_s(self) -> float:
        """What is left of the TTFT target, in seconds; negative when it has passed."""
        return self.slo.ttft_s - self.waited_s


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as placement sees it: its last view plus what was sent there since.

    `backlog_s` is predicted prefill time not done yet. `slack_s` is what the slack rule allows a window to take from
    the running streams, `tightest_slack_s` the slack of the tightest of them; both None without running streams.
    `free_blocks` is what is left after everything accepted or on its way, `spare_blocks` what is left of that after
    the running streams have grown to the length expected. `window_left_s` is how long the current
    prefill window may still last for its earliest member, None outside a window. `forced_wait_s` is how long no
    further late prompt may be forced upon the running streams. `closed` says why nothing may be placed here, else
    None.
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
    window_left_s: float | None
    forced_wait_s: float
    closed: str | None

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return self.running == 0 and self.waiting == 0


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that could be carried out now, in numbers; `scheduling.plan_reason` puts it into words.

    `prefill_s` is the prompt's predicted prefill time alone, `ttft_s` counts from arrival, `harm_s` is how late the
    tightest running stream would be. `cost_s` is what it takes from the fleet: replica-seconds of prefill plus
    stream-seconds of slack spent. `meets` says that both targets are predicted to be met; `best_effort` that the
    request is placed although they are not.
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

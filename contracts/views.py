"""What a replica tells the fleet about itself."""

from __future__ import annotations

import msgspec

from contracts.handoff import LinkView
from contracts.kv import Fingerprint
from contracts.model import ModelSpec
from contracts.phase import Phase, Role

SLACK_QUANTILES = tuple(i / 10 for i in range(11))
"""The levels at which `ReplicaView.slack_quantiles_s` is reported."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """A step's cost as a value: the coefficients of the step-time predictor, in seconds.

    `T = a0 + a1*tokens + b0*L_past*L_chunk + b1*L_chunk^2 + b2*sum(decode context) + b3*decodes`;
    `margin_s` is the predictor's own upper residual quantile (P95).
    """

    a0: float
    a1: float
    b0: float
    b1: float
    b2: float
    b3: float
    margin_s: float = 0.0


class ReplicaIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Said once, at the handshake. A changed `incarnation` means a new process: nothing of the old one is left.

    `data_endpoints` are where KV can be sent to, best first; empty when this replica can neither give nor take KV.
    """

    replica_id: str
    incarnation: str
    version: str
    model: ModelSpec
    fingerprint: Fingerprint
    num_blocks: int
    max_running: int
    max_waiting: int
    device: str = "cpu"
    data_endpoints: tuple[str, ...] = ()


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one replica. Times are durations in seconds, so no two clocks are ever compared.

    `slack_quantiles_s` holds the running streams' slack at `SLACK_QUANTILES`, empty without running streams.
    `backlog_s` is the predicted time from now until everything accepted has been prefilled; prompts share steps.
    `late_backlog_s` is the part of it that rides in decode steps for prompts whose TTFT target has passed.
    `acked_submit_index` is the highest `Request.submit_index` of the receiving router that this view already counts.
    `prompt_tokens_computed` and `output_tokens_computed` count rows since the start: they tell where a prompt was
    really computed.
    `receiving` sequences wait for their KV (blocks reserved, counted in `running`), `sending` ones have been computed
    and hold their blocks until the receiver has all of them. `handoffs_*`, `kv_bytes_*` and `checksum_errors` count
    since the start. `links` are this replica's links to the peers it may send to.
    `switch_left_s` is what is left of the TTFT target of the tightest stream that waits for its first decode step
    (the switch wait counts into it), None without one whose target can still be met. `window_cuts` counts how often
    streams got a step in the middle of a prefill window; `starved_s` is how long the current one has kept them without.
    `guarded` streams began under an earlier role and are still protected by their slack, whatever the role now.
    `steps_done` moves while the engine makes progress; `step_age_s` is how long the step in flight has run.
    """

    replica_id: str
    incarnation: str
    role: Role
    phase: Phase
    draining: bool
    lease_left_s: float
    waiting: int
    waiting_tokens: int
    oldest_waiting_s: float
    backlog_s: float
    running: int
    slack_quantiles_s: tuple[float, ...]
    slack_mean_s: float
    decode_step_s: float
    free_blocks: int
    num_blocks: int
    block_size: int
    cost: StepCost
    acked_submit_index: int
    steps_done: int
    step_age_s: float
    preemptions: int = 0
    overdraft_s: float = 0.0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    prompt_tokens_computed: int = 0
    output_tokens_computed: int = 0
    receiving: int = 0
    sending: int = 0
    handoffs_in: int = 0
    handoffs_out: int = 0
    handoffs_failed: int = 0
    kv_bytes_in: int = 0
    kv_bytes_out: int = 0
    checksum_errors: int = 0
    guarded: int = 0
    switch_left_s: float | None = None
    window_cuts: int = 0
    starved_s: float = 0.0
    late_backlog_s: float = 0.0
    links: tuple[LinkView, ...] = ()

"""What one replica tells the fleet about itself. Durations only."""

from __future__ import annotations

from contracts.views import SLACK_QUANTILES, ReplicaView
from scheduling.admission import backlog_s
from scheduling.phases import decode_shape, starved_s
from scheduling.replica_state import ReplicaState
from scheduling.role_guard import num_guarded
from scheduling.slack import lower_quantile, slacks, switch_left_s


def view_of(state: ReplicaState, now: float, replica_id: str, incarnation: str) -> ReplicaView:
    """A snapshot. Slack counts only streams whose clock runs; quantiles are rounded down to values that occur."""
    ordered = slacks(state.decoding.values(), now)
    waiting = (*state.waiting.values(), *state.to_receive.values())
    counters = state.counters
    return ReplicaView(
        replica_id=replica_id,
        incarnation=incarnation,
        role=state.role,
        phase=state.clock.phase,
        draining=state.draining,
        lease_left_s=max(0.0, state.clock.lease_until - now),
        waiting=len(waiting),
        waiting_tokens=state.waiting_tokens,
        oldest_waiting_s=max((s.age_s(now) for s in waiting), default=0.0),
        backlog_s=backlog_s(state, now),
        running=state.num_running,
        slack_quantiles_s=tuple(lower_quantile(ordered, q) for q in SLACK_QUANTILES) if ordered else (),
        slack_mean_s=sum(ordered) / len(ordered) if ordered else 0.0,
        decode_step_s=state.config.pipeline_depth * state.predictor.predict_s(decode_shape(state)),
        free_blocks=state.ledger.num_free,
        num_blocks=state.ledger.num_blocks,
        block_size=state.layout.block_size,
        cost=state.predictor.cost,
        acked_submit_index=state.acked_submit_index,
        steps_done=counters.steps_done,
        step_age_s=0.0 if state.in_flight is None else now - state.in_flight.started_at,
        preemptions=counters.preemptions,
        overdraft_s=counters.overdraft_s,
        prefix_hit_tokens=counters.prefix_hit_tokens,
        prefix_query_tokens=counters.prefix_query_tokens,
        receiving=len(state.receiving),
        sending=len(state.sending),
        handoffs_in=counters.handoffs_in,
        handoffs_out=counters.handoffs_out,
        handoffs_failed=counters.handoffs_failed,
        kv_bytes_in=counters.kv_bytes_in,
        kv_bytes_out=counters.kv_bytes_out,
        checksum_errors=counters.checksum_errors,
        guarded=num_guarded(state),
        switch_left_s=switch_left_s(state.decoding.values(), now),
        window_cuts=counters.window_cuts,
        starved_s=starved_s(state, now),
        links=state.links.views(now),
    )

"""What one replica tells the fleet about itself. Durations only."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

from contracts.views import SLACK_QUANTILES, ReplicaView
from scheduling.admission import backlog_s, late_backlog_s, rides
from scheduling.phases import chunk_beside, decode_shape, starved_s
from scheduling.replica_state import ReplicaState
from scheduling.role_guard import num_guarded
from scheduling.slack import lower_quantile, slacks, switch_left_s


@lru_cache(maxsize=1024)
def _quantiles_of(count: int) -> Callable[[list[float]], tuple[float, ...]]:
    """Takes the quantiles from a sorted list of so many values."""
    return itemgetter(*[lower_quantile(range(count), level) for level in SLACK_QUANTILES])


def view_of(state: ReplicaState, now: float, replica_id: str, incarnation: str) -> ReplicaView:
    """A snapshot. Slack counts only streams whose clock runs; quantiles are rounded down to values that occur."""
    streams = state.decoding.values()
    ordered = slacks(streams, now)
    counters, predictor, ledger, flying = state.counters, state.predictor, state.ledger, state.in_flight
    oldest_waiting_s = 0.0
    for queue in (state.waiting, state.to_receive):
        if queue:
            oldest_waiting_s = max(oldest_waiting_s, *[now - s.arrived_at + s.waited_s for s in queue.values()])
    decodes = decode_shape(state)
    riding = bool(state.prefilling or state.waiting) and rides(state)
    chunk = chunk_beside(state, decodes) if riding else None
    return ReplicaView(
        replica_id=replica_id,
        incarnation=incarnation,
        role=state.role,
        phase=state.clock.phase,
        draining=state.draining,
        lease_left_s=max(0.0, state.clock.lease_until - now),
        waiting=state.num_waiting,
        waiting_tokens=state.waiting_tokens,
        oldest_waiting_s=oldest_waiting_s,
        backlog_s=backlog_s(state, now, chunk),
        running=state.num_running,
        slack_quantiles_s=_quantiles_of(len(ordered))(ordered) if ordered else (),
        slack_mean_s=sum(ordered) / len(ordered) if ordered else 0.0,
        decode_step_s=state.config.pipeline_depth * predictor.predict_s(decodes),
        free_blocks=ledger.num_free,
        num_blocks=ledger.num_blocks,
        block_size=state.layout.block_size,
        cost=predictor.cost,
        acked_submit_index=state.acked_submit_index,
        steps_done=counters.steps_done,
        step_age_s=0.0 if flying is None else now - flying.started_at,
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
        switch_left_s=None if len(ordered) == len(streams) else switch_left_s(streams, now),
        window_cuts=counters.window_cuts,
        starved_s=starved_s(state, now),
        late_backlog_s=late_backlog_s(state, now, chunk) if riding else 0.0,
        links=state.links.views(now),
    )

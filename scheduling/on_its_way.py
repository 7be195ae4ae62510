"""What was sent to a replica since its last view, summed up once for all who ask."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from contracts.views import ReplicaView
from scheduling.cluster_requests import Leg


class OnItsWay(msgspec.Struct, frozen=True):
    """Sums over the legs that a view does not count: `sequences`, KV `blocks`, `tokens` of prompt, and how many are
    `prompts` with something to prefill.

    `backlog_s` is the predicted prefill time of these and of what the view counts; what comes shares the steps of what
    waits there. `joins`: so would one more prompt.
    """

    sequences: int
    blocks: int
    tokens: int
    prompts: int
    backlog_s: float
    joins: bool


def on_its_way(view: ReplicaView, unacked: Collection[Leg]) -> OnItsWay:
    """`unacked` in the order in which they were sent."""
    waits_s = max(0.0, view.backlog_s)
    # So many prompts that come have no other to share a step with: an idle replica begins with the first at once, and
    # whatever comes meanwhile is in the next step.
    starts = 0 if view.waiting else 1 if view.running or view.backlog_s > 0.0 else 2
    if not unacked:
        return OnItsWay(0, 0, 0, 0, waits_s, starts == 0)
    prompts = [leg for leg in unacked if leg.prefill_s > 0.0 and not leg.record.prefill_finished]
    alone_s = sum([leg.prefill_s for leg in prompts])
    return OnItsWay(
        sequences=sum([leg.record.asked.num_sequences for leg in unacked]),
        blocks=sum([leg.blocks for leg in unacked]),
        tokens=sum([leg.waiting_tokens for leg in unacked]),
        prompts=len(prompts),
        backlog_s=waits_s + alone_s - sum([leg.shared_s for leg in prompts[starts:]]),
        joins=len(prompts) >= starts,
    )

"""Whether a replica has a place for a request at all, and what the phased plan on it would be, whatever the rule."""

from __future__ import annotations

import msgspec

from contracts.phase import Layout
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import (
    blocks_needed,
    cut_ttft_s,
    decode_step_s,
    joining_prefill_s,
    meets_targets,
    phased_ttft_s,
)

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_PHASED = Layout.PHASED


def room_objection(ask: Ask, load: Load) -> str | None:
    """Why the request has no place on `load` whatever its targets: closed, no waiting room, no memory. Else None."""
    if load.closed is not None:
        return load.closed
    if load.waiting + ask.num_sequences > load.max_waiting:
        return f"{load.waiting} waiting of {load.max_waiting}"
    needed = blocks_needed(ask, load.block_size)
    if needed > load.free_blocks and not (load.idle and prompt_fits(ask, load)):
        return f"{needed} KV blocks needed, {load.free_blocks} free"
    return None


def slot_objection(ask: Ask, load: Load) -> str | None:
    """Why the request would have to wait on `load` for a stream to end, or None. An idle replica never objects."""
    if load.idle:
        return None
    taken = load.running + load.waiting
    if taken + ask.num_sequences > load.max_running:
        return f"{taken} of {load.max_running} sequence slots taken"
    needed = blocks_needed(ask, load.block_size)
    if needed > load.spare_blocks:
        return f"{needed} KV blocks needed, {load.spare_blocks} spare when the running streams have grown"
    return None


def place_objection(ask: Ask, load: Load) -> str | None:
    """`room_objection`, then `slot_objection`: whether the request could run on `load` at once. The usual answer, None,
    takes one look at the numbers."""
    waiting = load.waiting + ask.num_sequences
    if load.closed is None and waiting <= load.max_waiting and load.running + waiting <= load.max_running:
        needed = blocks_needed(ask, load.block_size)
        if needed <= load.free_blocks and needed <= load.spare_blocks:
            return None
    return room_objection(ask, load) or slot_objection(ask, load)


def prompt_fits(ask: Ask, load: Load) -> bool:
    """Whether prompt and first output token fit the whole cache of the replica."""
    return ask.prompt_tokens + 1 <= load.num_blocks * load.block_size


def phased_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The phased plan on one replica, with its prediction and cost, whether or not it passes."""
    prefill_s = joining_prefill_s(ask, load, config.prefill_chunk)
    ttft_s = phased_ttft_s(ask, load, prefill_s)
    window_s = load.backlog_s + prefill_s + load.cost.margin_s
    tpot_s = decode_step_s(ask, load)
    tightest_s = load.tightest_slack_s
    return Candidate(
        layout=_PHASED,
        load=load,
        prefill_s=prefill_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        harm_s=0.0 if tightest_s is None else max(0.0, window_s - tightest_s),
        cost_s=prefill_s * (1 + load.running),
        meets=meets_targets(ask, load, ttft_s, tpot_s),
        cached_tokens=ask.cached_on(load.replica_id),
    )


def cut_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The phased plan on one replica whose window is cut where slack ends: it harms no stream, and takes longer."""
    whole = phased_candidate(ask, load, config)
    ttft_s = cut_ttft_s(ask, load, whole.prefill_s, config.max_gap_s)
    meets = meets_targets(ask, load, ttft_s, whole.tpot_s)
    return msgspec.structs.replace(whole, ttft_s=ttft_s, harm_s=0.0, meets=meets)

"""The phased plan: rolling activation over alternating replicas (EcoServe, OSDI'26).

Replicas are tried in cyclic order, starting with the one that took the last request. The first that passes takes
the request. A replica passes when

1. it is open (live, fresh view, not draining), has a free sequence slot and the KV blocks, output reserve included;
2. backlog of its window + this prompt <= what is left of the TTFT target, the time already waited counted;
3. the window so prolonged ends within the TTFT target of its earliest member (the switch wait counts into TTFT);
4. backlog + this prompt <= what the slack rule allows to take from the running streams, and `max_gap_s`;
5. the decode step with the new sequences stays within the TPOT target, if the target is reachable at all.

That is first fit, by which our own rules differ in 4. alone; the published ones are in `scheduling.plan_published`.

Windows are not planned beyond `max_gap_s`, where the replica cuts them: streams that began in a window have no slack at
the cut, so that what is left of it advances only as fast as decode gains on the TPOT target. Where none passes, a
prompt that no such window holds, or that has waited a quarter of its target, is prefilled in pieces where that is done
first, if in time: the replica cuts the window where slack ends, so no stream is harmed. Else long prompts would wait
for slack that a loaded fleet never has until they are late.

An idle replica passes whenever the prompt fits its memory: nothing is gained by waiting.

Low load: the published rule keeps sending to the current replica while slack lasts, and so interrupts its streams or
lengthens its queue although others have no stream to protect, which makes attainment dip at low rates. Here a replica
without running streams is preferred when its predicted TTFT is less than the current one's plus the slack that the
current one's streams would spend on this prompt. Where all have running streams, which is so under load, it never is.
Likewise one that takes the prompt without harm to any stream is preferred to one where the rule lets a tight one pay.

Cached prefixes are part of every prediction, so they lengthen no window. A replica that has more of the prompt cached
than the one whose turn it is takes it only when it passes as well and the prefill that this saves is more than what it
takes: its streams' slack for the rest of the prompt, and the time that the prompt would wait longer there. So one
prefix that many prompts share does not gather them on one replica: its backlog soon outweighs the prefill saved.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import alone_step_s, decode_step_s, joining_prefill_s, phased_ttft_s, prefill_on_s
from scheduling.plan_published import PUBLISHED
from scheduling.plan_room import cut_candidate, phased_candidate, place_objection

REASONS_SHOWN = 4
PIECES_AFTER = 0.25
"""In TTFT targets waited: how long a prompt waits for a window of its own, if one could ever hold it."""


def plan_phased(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The candidate of the replica of `ring` that the admission rule finds, or why there is none.

    `ring` holds the alternating replicas of one macro instance in cyclic order, the one whose turn it is first.
    """
    if not ring:
        return "no alternating replica"
    published = PUBLISHED.get(config.rule.walk)
    return _first_fit(ask, ring, config) if published is None else published(ask, ring, config)


def _first_fit(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The candidate of the first replica of `ring` that passes (see the module), or why none does."""
    objections: list[str] = []
    for position, load in enumerate(ring):
        why_not = objection(ask, load, config)
        if why_not is None:
            return _prefer_unburdened(ask, ring[position:], config)
        objections.append(f"{load.replica_id}: {why_not}")
    in_pieces = _first_in_pieces(ask, ring, config) if config.window_chunking else None
    if in_pieces is not None:
        return in_pieces
    more = f"; {len(objections) - REASONS_SHOWN} more" if len(objections) > REASONS_SHOWN else ""
    return "; ".join(objections[:REASONS_SHOWN]) + more


def objection(ask: Ask, load: Load, config: ClusterCoreConfig) -> str | None:
    """Why `load` does not pass for `ask`, in one clause with the numbers, or None."""
    no_place = place_objection(ask, load)
    if no_place is not None or load.idle:
        return no_place
    prefill_s = joining_prefill_s(ask, load, config.prefill_chunk)
    window_s = load.backlog_s + prefill_s + load.cost.margin_s
    ttft_s = phased_ttft_s(ask, load, prefill_s) + load.cost.margin_s
    if ttft_s > ask.slo.ttft_s:
        return f"predicted TTFT {ttft_s:.3f} s over {ask.slo.ttft_s:.3f} s"
    if load.window_due_at is not None and ask.now < load.window_due_at < ask.now + window_s:
        left_s = load.window_due_at - ask.now
        return f"window {window_s:.3f} s over {left_s:.3f} s left to its first member"
    longest_s = config.max_gap_s if config.window_chunking else max(config.max_gap_s, prefill_s)
    longest_s -= load.starved_s
    if load.slack_s is not None and window_s > longest_s:
        return f"window {window_s:.3f} s over {longest_s:.3f} s, the longest gap that a stream may have"
    if load.slack_s is not None and window_s > load.slack_s:
        return f"window {window_s:.3f} s over slack {load.slack_s:.3f} s ({config.admission})"
    step_s = decode_step_s(ask, load)
    if step_s > ask.slo.tpot_s >= alone_step_s(ask, load):
        return f"decode step {step_s:.3f} s over TPOT target {ask.slo.tpot_s:.3f} s"
    return None


def _first_in_pieces(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | None:
    """Where the prompt is done first when its window is cut, in time for both targets; None if nowhere."""
    best: Candidate | None = None
    for load in ring:
        fits_a_gap = prefill_on_s(ask, load, config.prefill_chunk) <= config.max_gap_s
        if fits_a_gap and ask.waited_s < PIECES_AFTER * ask.slo.ttft_s:
            continue
        if load.slack_s is None or place_objection(ask, load) is not None:
            continue
        found = cut_candidate(ask, load, config)
        if found.meets and (best is None or found.ttft_s < best.ttft_s):
            best = found
    return best


def _prefer_unburdened(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate:
    """The first of `ring`, which passes; or one without running streams that costs TTFT and slack together less; or,
    where it would harm a stream, the first that would not."""
    best = phased_candidate(ask, ring[0], config)
    if ring[0].idle:
        return _prefer_cached(ask, ring, best, config) if ask.cached else best
    score = best.ttft_s + (0.0 if ring[0].slack_s is None else best.prefill_s)
    for load in ring[1:]:
        harms = best.harm_s > 0.0
        if (load.slack_s is None or harms) and objection(ask, load, config) is None:
            other = phased_candidate(ask, load, config)
            if (harms and other.harm_s == 0.0) or (load.slack_s is None and other.ttft_s < score):
                best, score = other, other.ttft_s + (0.0 if load.slack_s is None else other.prefill_s)
    return _prefer_cached(ask, ring, best, config) if ask.cached else best


def _prefer_cached(ask: Ask, ring: Sequence[Load], best: Candidate, config: ClusterCoreConfig) -> Candidate:
    """`best`, or the one of `ring` where a cached prefix saves the most beyond what it costs (see the module)."""
    most_s = 0.0
    first = best
    for load in ring:
        if ask.cached_on(load.replica_id) <= first.cached_tokens or objection(ask, load, config) is not None:
            continue
        other = phased_candidate(ask, load, config)
        saved_s = first.prefill_s - other.prefill_s
        spent_s = 0.0 if load.slack_s is None else other.prefill_s
        longer_s = max(0.0, (other.ttft_s - other.prefill_s) - (first.ttft_s - first.prefill_s))
        if other.harm_s <= first.harm_s and other.meets >= first.meets and saved_s - spent_s - longer_s > most_s:
            best, most_s = other, saved_s - spent_s - longer_s
    return best

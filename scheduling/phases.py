"""When to prefill and for how long: the policy of each role, as grants for the next step, best first.

Alternating (EcoServe's temporal disaggregation, with our bounds): decode until there is a lease, prefill while it holds
and the slack of the running streams allows, go back to decode early when it does not. With nothing to decode no lease
is needed: an idle device helps nobody. Overdue and preempted prompts need no lease either, and when slack never comes
(streams that cannot keep their own target) they get a bounded share of the time as overdraft. So neither side starves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from contracts.phase import Phase, Role
from scheduling.admission import uncached
from scheduling.admission_rules import Budget
from scheduling.chunk_policies import even_tokens, keeps_even, step_tokens
from scheduling.prefill_picks import PrefillGrant, is_urgent
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.role_guard import guarded_allowance_s, guards
from scheduling.sequence import Sequence
from scheduling.slack import aggregate, slacks, switch_left_s
from scheduling.step_shape import StepShape
from scheduling.token_budget import largest_chunk


def decode_shape(state: ReplicaState) -> StepShape:
    """The next pure decode step; of a pipeline the mean one, since each batch in flight holds a part of the streams."""
    depth, rows = state.config.pipeline_depth, len(state.decoding)
    context = rows + sum([s.num_computed for s in state.decoding.values()])
    return StepShape.of_decodes(-(-rows // depth), -(-context // depth))


def chunk_beside(state: ReplicaState, decodes: StepShape) -> int | None:
    """The largest chunk whose step beside `decodes`, of which there are some, takes the tightest TPOT target of their
    streams, of which each stage of a pipeline has its part; None where the deadline budget has no say."""
    config = state.config
    if config.rule.budget is not Budget.DEADLINE:
        return None
    step_s = min(s.tpot_s for s in state.decoding.values()) / config.pipeline_depth
    limit, multiple, cost = config.max_chunk, config.chunk_multiple, state.predictor.cost
    return max(config.min_chunk, largest_chunk(cost, decodes, past=0, limit=limit, allowed_s=step_s, multiple=multiple))


def rows_shape(state: ReplicaState, rows: Seq[Sequence]) -> StepShape:
    """A step of these decode rows alone."""
    return StepShape.of_decodes(len(rows), len(rows) + sum([s.num_computed for s in rows]))


def separate_grants(state: ReplicaState, now: float) -> list[PrefillGrant]:
    """What a replica whose steps hold one phase may prefill next; decode if none of it is used.

    A prefill replica prefills whenever it can, a mixed one under `prefill_priority` too; the streams of whole requests
    that are there get a step each `max_gap_s`. A decode replica is an alternating one whose lease never ends: what is
    computed there (a fallback, a preempted sequence) waits for the slack of its streams and nothing else. So does a
    prefill replica as long as guarded streams of an earlier role run there, towards those.

    A phase that has used its allowance up is cut at a chunk boundary: streams decode until there is enough for a phase
    worth the switch, and it goes on under the same lease. Without `window_chunking` what is begun is not cut, lease or
    not, but by `max_gap_s`; so nothing is begun that there is not enough for.
    """
    config, clock = state.config, state.clock
    if not could_prefill(state):
        return []
    if not state.decoding:
        return [PrefillGrant(math.inf, config.max_chunk)]
    if _prefills_first(state) and not guards(state):
        starved = clock.starved_since is not None and now - clock.starved_since >= config.max_gap_s
        return [] if starved else [PrefillGrant(math.inf, config.max_chunk)]
    leased = state.role is not Role.ALTERNATING or clock.lease_until > now
    urgent = _any_urgent(state, now)
    begun = bool(state.prefilling) and not config.window_chunking
    if not (leased or urgent or begun):
        return []
    grants = []
    bounds = allowance(state, now)
    allowed = bounds.hard_s if begun else bounds.rule_s
    then = decode_shape(state)
    then_s = state.predictor.predict_s(then)
    spare = max(0.0, bounds.kept_s - then_s)
    # A switch should be worth it: enter for a whole prompt or half of the longest chunk, stay for less.
    longest = _longest_chunk(state, then)
    worthwhile = config.min_chunk if clock.phase is Phase.PREFILL else max(config.min_chunk, longest // 2)
    if _least_prefill_s(state, worthwhile) + then_s <= allowed:
        grants.append(
            PrefillGrant(
                allowed,
                config.max_chunk,
                then,
                worthwhile,
                urgent_only=not (leased or begun),
                begun_only=begun,
                whole=not (config.window_chunking or begun),
                overdraft_over_s=spare if allowed > bounds.kept_s else None,
            )
        )
    if urgent and clock.decode_owed_s <= 0.0 and clock.starved_since is None:
        grants.append(PrefillGrant(math.inf, longest, urgent_only=True, overdraft_over_s=spare, owes=True))
    return grants


def starved_s(state: ReplicaState, now: float) -> float:
    """How long running streams have had no decode step, in a prefill phase that began while there were some."""
    since, flying = state.clock.starved_since, state.in_flight
    if since is None and flying is not None and flying.batch.phase is Phase.PREFILL and state.decoding:
        since = flying.started_at
    return 0.0 if since is None else now - since


def _prefills_first(state: ReplicaState) -> bool:
    return state.role is Role.PREFILL or (state.role is Role.MIXED and state.config.rule.budget is Budget.PREFILL_FIRST)


@dataclass(slots=True, frozen=True)
class Allowance:
    """How long running streams can do without their next token, in seconds from now; of a pipeline, the share that its
    next batch may take of each stage: it lands after about as many batches as are in flight (DCP, OSDI'26).

    `hard_s`: whatever the rule, what is left of `max_gap_s` since they last had a decode step, and what guarded streams
    can spare. `kept_s`: every stream still gets what it was promised. `rule_s`: what the admission rule allows.
    """

    hard_s: float
    kept_s: float
    rule_s: float


def allowance(state: ReplicaState, now: float) -> Allowance:
    """Slack is that of streams whose clock runs, those included that began inside this very phase. Streams that wait
    for their first decode step have what is left of their TTFT target (the switch wait counts into it, EcoServe §3.2).
    """
    config, rule, starved_since = state.config, state.config.rule, state.clock.starved_since
    depth = config.pipeline_depth
    hard = config.max_gap_s if starved_since is None else starved_since + config.max_gap_s - now
    hard = min(hard, guarded_allowance_s(state, now))
    if _prefills_first(state):
        return Allowance(hard / depth, hard / depth, hard / depth)
    switch_s = switch_left_s(state.decoding.values(), now)
    first = hard if switch_s is None else min(hard, switch_s)
    clocks = slacks(state.decoding.values(), now)
    kept = min(first, clocks[0]) if clocks else first
    if rule.greedy:
        ruled = hard if state.role is Role.ALTERNATING else kept
    else:
        ruled = min(first, aggregate(clocks, rule.level)) if clocks else first
    return Allowance(hard / depth, kept / depth, ruled / depth)


def mixed_grants(state: ReplicaState, decodes: StepShape, now: float) -> list[PrefillGrant]:
    """What may be prefilled beside the decodes of a mixed step, whose shape is `decodes`."""
    config = state.config
    if not could_prefill(state):
        return []
    rule = state.config.rule
    fixed = rule.budget is Budget.FIXED or rule.follows_load
    if fixed and not guards(state):
        tokens = (step_tokens(state, decodes, now) if rule.follows_load else rule.tokens) - decodes.tokens
        grants = [PrefillGrant(math.inf, tokens)] if tokens > 0 else []
        spare = 0.0
    elif not state.decoding:
        return [PrefillGrant(math.inf, config.max_chunk)]
    else:
        # Clocks were started: this step decodes them. A fixed budget protects none but guarded streams.
        streams = [s for s in state.decoding.values() if s.guarded] if fixed else list(state.decoding.values())
        due = min([_due(state, s) for s in streams] if state.flying else [s.deadline for s in streams])
        spare = min(config.max_gap_s, max(0.0, due - now)) / config.pipeline_depth
        grants = []
        if decodes.predict_s(state.predictor.cost) < spare:
            grants.append(
                PrefillGrant(spare, _most_tokens(state, decodes, spare, now), first_at_least=config.min_chunk)
            )
    if state.clock.decode_owed_s <= 0.0 and _any_urgent(state, now):
        grants.append(_mixed_overdraft(state, decodes, spare))
    return grants


def _most_tokens(state: ReplicaState, decodes: StepShape, spare: float, now: float) -> int:
    """How many prompt tokens the deadline budget takes at most, within the time of a stage that streams can `spare`."""
    config = state.config
    if not keeps_even(config):
        return config.max_chunk
    even = even_tokens(state, decodes, spare / (1.0 + state.predictor.relative_margin), now) - decodes.tokens
    return max(config.min_chunk, min(config.max_chunk, even))


def _due(state: ReplicaState, stream: Sequence) -> float:
    """When the next token must be there that the step at hand can delay: of a stream in flight the one after this."""
    return stream.deadline + stream.tpot_s if stream.request_id in state.flying else stream.deadline


def _mixed_overdraft(state: ReplicaState, decodes: StepShape, spare: float) -> PrefillGrant:
    """A share of the time of one step, or `min_chunk`, after which decodes have their share of the time first."""
    config = state.config
    cost = state.predictor.cost
    allowed = decodes.predict_s(cost) / (1.0 - config.overdraft_share)
    chunk = largest_chunk(
        cost, decodes, past=0, limit=config.max_chunk, allowed_s=allowed, multiple=config.chunk_multiple
    )
    return PrefillGrant(math.inf, max(config.min_chunk, chunk), urgent_only=True, overdraft_over_s=spare, owes=True)


def note_step(state: ReplicaState, step: StepInFlight, duration_s: float, now: float) -> None:
    """A step ended: keep the phase clock. What overdue prompts took beyond slack is paid back by decoding: they get
    `overdraft_share` of the time at most. Overdraft that a rule allows is counted and owed to nobody."""
    clock, share = state.clock, state.config.overdraft_share
    if state.config.rule.follows_load:
        state.load.landed(now - step.started_at)
    if step.overdraft_over_s is not None:
        state.counters.overdraft_s += max(0.0, duration_s - step.overdraft_over_s)
    if step.owes or clock.decode_owed_s > 0.0:
        decode_s = duration_s * _decode_part(state, step.shape)
        if step.owes:
            clock.decode_owed_s += (duration_s - decode_s) * (1.0 - share) / share
        clock.decode_owed_s = max(0.0, clock.decode_owed_s - decode_s) if state.decoding else 0.0
    if step.batch.phase is not Phase.PREFILL or not state.decoding:
        clock.starved_since = None
    elif clock.starved_since is None:
        had_streams = any(s.first_decode_at is not None for s in state.decoding.values())
        clock.starved_since = step.started_at if had_streams else now


def _decode_part(state: ReplicaState, shape: StepShape) -> float:
    """The part of a step's time that its decode rows alone would take, from 0 to 1."""
    if shape.decodes == shape.tokens:
        return 1.0
    if shape.decodes == 0:
        return 0.0
    alone = StepShape.of_decodes(shape.decodes, shape.decode_context)
    whole_s = state.predictor.predict_s(shape)
    return state.predictor.predict_s(alone) / whole_s if whole_s > 0.0 else 0.0


def _longest_chunk(state: ReplicaState, then: StepShape) -> int:
    """The chunk that, with the decode step behind it, takes `max_gap_s`: at most `max_chunk`, at least `min_chunk`."""
    config, cost = state.config, state.predictor.cost
    chunk = largest_chunk(
        cost,
        StepShape(),
        past=0,
        limit=config.max_chunk,
        allowed_s=config.max_gap_s / (1.0 + state.predictor.relative_margin) - then.predict_s(cost),
        multiple=config.chunk_multiple,
    )
    return max(config.min_chunk, chunk)


def _least_prefill_s(state: ReplicaState, worthwhile: int) -> float:
    """No prefill step worth running is shorter. Spares the ordering of a long queue while slack is short."""
    tokens = min(worthwhile, *(uncached(s) for s in (*state.prefilling.values(), *state.waiting.values())))
    cost = state.predictor.cost
    return cost.a0 + cost.a1 * tokens


def could_prefill(state: ReplicaState) -> bool:
    """Cheap and necessary: a started prompt, or a waiting one and a free slot."""
    return bool(state.prefilling or (state.waiting and state.num_running < state.config.max_running))


def _any_urgent(state: ReplicaState, now: float) -> bool:
    for prompts in (state.prefilling, state.waiting):
        for sequence in prompts.values():
            if is_urgent(state, sequence, now):
                return True
    return False

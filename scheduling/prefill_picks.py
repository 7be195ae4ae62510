"""Which prompts get how many tokens in the next step, under a time and a token limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.phase import Role
from scheduling.admission import Reserve, computed_by, look_up, remaining_s
from scheduling.handoff_sending import start_sending
from scheduling.prompt_order import order_prompts
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence, Status
from scheduling.step_shape import StepShape, prefill_s
from scheduling.token_budget import largest_chunk

CUT_FROM = 0.9
"""A prompt that takes this part of `max_gap_s` or more is begun when there is so much, where prompts are not cut."""


@dataclass(slots=True, frozen=True)
class PrefillGrant:
    """What the phase policy allows for one step.

    `allowed_s`: predicted time of the step, together with the decode step `then` that must follow if there is one.
    `tokens`: prefill tokens. `first_at_least`: the chunk below which the step is not worth it (a prompt that ends
    sooner always is). `urgent_only`: only overdue and preempted prompts. `begun_only`: only those that hold blocks.
    `whole`: no prompt is begun that could not be finished in the time. `overdraft_over_s`: when streams pay, the
    time they could have spared; `owes`: they get it back.
    """

    allowed_s: float
    tokens: int
    then: StepShape | None = None
    first_at_least: int = 1
    urgent_only: bool = False
    begun_only: bool = False
    whole: bool = False
    overdraft_over_s: float | None = None
    owes: bool = False


def is_urgent(state: ReplicaState, sequence: Sequence, now: float) -> bool:
    """Preempted, or given room by preempting others, or older than `overdue_after` TTFT targets."""
    if sequence.made_room or sequence.preemptions or sequence.status is Status.PREEMPTED:
        return True
    return sequence.age_s(now) >= state.config.overdue_after * sequence.request.slo.ttft_s


def prompts_in_order(state: ReplicaState, now: float, *, urgent_only: bool = False) -> list[Sequence]:
    """Prefilling and waiting sequences in the order of service."""
    prompts = [*state.prefilling.values(), *state.waiting.values()]
    if urgent_only:
        prompts = [s for s in prompts if is_urgent(state, s, now)]
    if len(prompts) <= 1:
        return prompts
    if _in_turn(state):
        return sorted(prompts, key=lambda s: (-s.priority, s.status is not Status.PREEMPTED, -s.age_s(now)))
    ordered = order_prompts(prompts, [remaining_s(state, s) for s in prompts], state.config, now)
    if state.role is Role.PREFILL:  # what it is for comes first; a whole request is served when it is overdue or alone
        ordered.sort(key=lambda s: not s.sends and not s.guarded and not is_urgent(state, s, now))
    return ordered


def _in_turn(state: ReplicaState) -> bool:
    """Whether prompts go in order of arrival within their priority: so do the published systems."""
    return state.role is state.config.rule.role and state.config.rule.in_turn


class PrefillPicker:
    """Fills one step with prefill chunks. `picks` are `(sequence, tokens)`; `shape` grows with each."""

    __slots__ = ("_allowed_s", "_grant", "_reserve", "_state", "_then", "picks", "shape")

    def __init__(self, state: ReplicaState, grant: PrefillGrant, shape: StepShape) -> None:
        self._state = state
        self._grant = grant
        self._reserve = Reserve(state)
        self._allowed_s = grant.allowed_s / (1.0 + state.predictor.relative_margin)
        self._then = None if grant.then is None else replace(grant.then)
        self.shape = shape
        self.picks: list[tuple[Sequence, int]] = []

    def fill(self, now: float) -> None:
        """Go through the prompts in order until the limits are reached.

        A prompt for which there is no room stops those behind it that have not started either, so that a long prompt
        is not overtaken for ever. A prompt whose next block is being computed gives its turn to the one computing, or
        waits for it to come in from another replica.
        """
        left = self._grant.tokens
        full = False
        picked: set[str] = set()
        for candidate in prompts_in_order(self._state, now, urgent_only=self._grant.urgent_only):
            if left <= 0:
                break
            if (full or self._grant.begun_only) and not candidate.blocks:
                continue
            sequence, cached = self._whose_turn(candidate)
            busy = sequence.request_id in picked or sequence.request_id in self._state.flying
            if busy or sequence.status is Status.RECEIVING:
                continue
            waits = not sequence.blocks
            if waits and not self._reserve.admits(sequence, cached):
                full = True
                continue
            tokens = self._tokens_for(sequence, cached, left)
            if tokens == 0:
                break
            if waits:
                self._state.start_prefill(sequence, cached, now)
                start_sending(self._state, sequence)
                self._reserve.add(sequence)
            self._add(sequence, tokens)
            picked.add(sequence.request_id)
            left -= tokens

    def _whose_turn(self, candidate: Sequence) -> tuple[Sequence, list[int]]:
        if candidate.blocks:
            return candidate, []
        cached = look_up(self._state, candidate)
        owner = computed_by(self._state, candidate, cached)
        return (candidate, cached) if owner is None else (owner, [])

    def _add(self, sequence: Sequence, tokens: int) -> None:
        self.picks.append((sequence, tokens))
        self.shape.add_prefill(sequence.num_computed, tokens)
        if self._then is not None and tokens == sequence.remaining:
            self._then.add_decodes(1, len(sequence.tokens))

    def _tokens_for(self, sequence: Sequence, cached: list[int], left: int) -> int:
        state = self._state
        past = sequence.num_computed + len(cached) * state.layout.block_size
        rest = len(sequence.tokens) - past
        after_s = self._decode_after_s(sequence)
        allowed_s = self._allowed_s - after_s
        if self._grant.whole and self._whole_s(past, rest, after_s) > allowed_s:
            return 0
        tokens = largest_chunk(
            state.predictor.cost,
            self.shape,
            past=past,
            limit=min(rest, left),
            allowed_s=allowed_s,
            multiple=state.config.chunk_multiple,
        )
        worthwhile = 1 if self.picks else self._grant.first_at_least
        return tokens if tokens >= min(rest, left, worthwhile) else 0

    def _whole_s(self, past: int, rest: int, after_s: float) -> float:
        """The step so far and all of a prompt; one that `max_gap_s` will cut in any case need not be had whole."""
        state = self._state
        whole_s = self.shape.predict_s(state.predictor.cost) + prefill_s(
            state.predictor.cost, past, rest, state.config.max_chunk
        )
        return min(whole_s, CUT_FROM * state.config.max_gap_s / (1.0 + state.predictor.relative_margin) - after_s)

    def _decode_after_s(self, sequence: Sequence) -> float:
        """The decode step that must follow, counting `sequence` as one more stream in it."""
        if self._then is None:
            return 0.0
        after = replace(self._then)
        after.add_decodes(1, len(sequence.tokens))
        return after.predict_s(self._state.predictor.cost)

"""Which requests are accepted at all, and which waiting prompts may take KV blocks now."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.errors import InvalidRequest, Overloaded, PhaseServeError, Unavailable
from contracts.handoff import PrefillLeg
from contracts.phase import Phase, Role
from contracts.request import Request
from scheduling.admission_rules import Budget
from scheduling.block_ledger import extend_hashes
from scheduling.output_reserve import growth_blocks
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.sequence import Sequence
from scheduling.step_shape import prefill_s

UNDONE_S = 0.001
"""What a step in flight that should be over has left, in seconds: there is something to prefill until it ends."""


def refusal(state: ReplicaState, request: Request) -> PhaseServeError | None:
    """Why the request cannot be accepted, or None. What can never fit is refused here, before any work."""
    prompt, output = len(request.prompt_token_ids), request.sampling.max_tokens
    if request.request_id in state.sequences:
        return InvalidRequest(f"request id {request.request_id} is in use", param="request_id")
    if state.draining:
        return Unavailable("the replica is draining", retry_after_s=1.0)
    if prompt == 0:
        return InvalidRequest("the prompt has no tokens", param="prompt")
    if output < 1:
        return InvalidRequest("max_tokens must be at least 1", param="max_tokens")
    if prompt + output > state.max_context:
        message = f"prompt ({prompt}) and max_tokens ({output}) exceed the context of {state.max_context} tokens"
        return InvalidRequest(message, param="max_tokens")
    if request.output_token_ids:
        wrong = _finished_already(state, request)
        if wrong is not None:
            return wrong
    made = prompt + len(request.output_token_ids)
    sends = isinstance(request.leg, PrefillLeg)
    if isinstance(request.leg, PrefillLeg) and request.leg.ticket.num_tokens != made:
        message = f"the ticket is for {request.leg.ticket.num_tokens} tokens, the sequence has {made}"
        return InvalidRequest(message, param="leg")
    blocks = state.layout.blocks_for(made if sends else prompt + output - 1)
    if blocks > state.ledger.num_blocks:
        message = f"the request needs {blocks} KV blocks, the replica has {state.ledger.num_blocks}"
        return InvalidRequest(message, param="max_tokens")
    return _overload(state, made)


def stop_tokens_of(state: ReplicaState, request: Request) -> frozenset[int]:
    """The tokens that end the sequence."""
    stops = frozenset(request.sampling.stop_token_ids)
    return stops if request.sampling.ignore_eos else stops | state.eos_tokens


def _finished_already(state: ReplicaState, request: Request) -> InvalidRequest | None:
    """Why a sequence with this output has nothing to go on with, or None."""
    made, sampling = request.output_token_ids, request.sampling
    stops = stop_tokens_of(state, request)
    if len(made) >= sampling.max_tokens:
        reason = f"there are {len(made)} output tokens already, max_tokens is {sampling.max_tokens}"
    elif any(token in stops for token in made[max(0, sampling.min_tokens - 1) :]):
        reason = "the output so far holds a token that ends it"
    else:
        return None
    return InvalidRequest(reason, param="output_token_ids")


def _overload(state: ReplicaState, prompt: int) -> Overloaded | None:
    """Bounds on what waits. A prompt longer than the token bound is accepted only when nothing else waits."""
    config = state.config
    if state.num_waiting >= config.max_waiting:
        reason = f"{state.num_waiting} requests wait already"
    elif state.num_waiting and state.waiting_tokens + prompt > config.max_waiting_tokens:
        reason = f"{state.waiting_tokens} prompt tokens wait already"
    else:
        return None
    return Overloaded(reason, retry_after_s=max(1.0, prefill_left_s(state)))


def uncached(sequence: Sequence) -> int:
    """Tokens still to compute, as far as known: for a waiting one less what the cache held when last looked."""
    left = len(sequence.tokens) - sequence.num_computed
    return left if sequence.blocks else left - sequence.cached_guess


def remaining_s(state: ReplicaState, sequence: Sequence) -> float:
    """Predicted time to prefill the rest of the sequence, alone."""
    left = uncached(sequence)
    return prefill_s(state.predictor.cost, len(sequence.tokens) - left, left, state.config.max_chunk)


def prefill_left_s(state: ReplicaState, chunk: int | None = None) -> float:
    """Predicted time to prefill everything accepted, the prefill step in flight from its start on, in chunks of `chunk`
    or of `max_chunk`.

    Prompts share steps, so the fixed part of a step is counted once for each `max_chunk` tokens; not at all where
    chunks ride in the decode steps of a mixed replica, which pay it.
    """
    if not (state.prefilling or state.waiting):
        return 0.0
    if rides(state):
        return _riding_s(state, (*state.prefilling.values(), *state.waiting.values()), chunk)
    cost, largest = state.predictor.cost, state.config.max_chunk
    fixed_s, left_s, tokens, alone = cost.a0, 0.0, 0, 0
    for sequence in (*state.prefilling.values(), *state.waiting.values()):
        left = uncached(sequence)
        left_s += prefill_s(cost, len(sequence.tokens) - left, left, largest)
        tokens += left
        alone += -(-left // largest)
    flying = _prefill_in_flight(state)
    if flying is not None:  # a step of its own, however few tokens
        return left_s - fixed_s * (alone - 1 - max(0, -(-(tokens - flying.shape.tokens) // largest)))
    return left_s - fixed_s * (alone - -(-tokens // largest))


def rides(state: ReplicaState) -> bool:
    """Whether chunks ride in decode steps now."""
    mixed = state.role is Role.MIXED and state.config.rule.budget is not Budget.PREFILL_FIRST
    return mixed and bool(state.decoding)


def _riding_s(state: ReplicaState, prompts: Iterable[Sequence], chunk: int | None) -> float:
    cost, chunk = state.predictor.cost, chunk or state.config.max_chunk
    total_s = 0.0
    for sequence in prompts:
        left = uncached(sequence)
        total_s += prefill_s(cost, len(sequence.tokens) - left, left, chunk) - cost.a0 * -(-left // chunk)
    return total_s


def backlog_s(state: ReplicaState, now: float, chunk: int | None = None) -> float:
    """Predicted time from now until everything accepted has been prefilled, if nothing else runs; `chunk` as in
    `prefill_left_s`."""
    left_s, flying = prefill_left_s(state, chunk), _prefill_in_flight(state)
    if flying is None or left_s == 0.0:
        return left_s
    done_s = min(now - flying.started_at, state.predictor.predict_s(flying.shape))
    return max(UNDONE_S, left_s - done_s)


def late_backlog_s(state: ReplicaState, now: float, chunk: int | None = None) -> float:
    """The part of `backlog_s`, where that rides in decode steps, of prompts whose TTFT target has passed: they come
    after those that can still be on time, unless all are served in turn."""
    if state.config.rule.in_turn and state.role is state.config.rule.role:
        return 0.0
    prompts = (*state.prefilling.values(), *state.waiting.values())
    return _riding_s(state, [s for s in prompts if s.ttft_deadline <= now], chunk)


def _prefill_in_flight(state: ReplicaState) -> StepInFlight | None:
    return state.in_flight if state.in_flight is not None and state.in_flight.batch.phase is Phase.PREFILL else None


def look_up(state: ReplicaState, sequence: Sequence) -> list[int]:
    """The cached blocks a waiting sequence can start from, now; asked again each time it could run, never remembered.

    At least the last token is always computed, because its row predicts the next one: of a prompt of exactly
    `k` blocks at most `k - 1` are taken. A sequence that reports prompt logprobs needs every row and takes none.
    """
    if not state.ledger.caching or sequence.logprobs_left:
        return []
    extend_hashes(sequence.hashes, sequence.tokens, len(sequence.tokens), state.layout.block_size)
    blocks = state.ledger.match(sequence.hashes, _most_cached(state, sequence))
    sequence.cached_guess = len(blocks) * state.layout.block_size
    return blocks


def _most_cached(state: ReplicaState, sequence: Sequence) -> int:
    return (len(sequence.tokens) - 1) // state.layout.block_size


def computed_by(state: ReplicaState, sequence: Sequence, cached: list[int]) -> Sequence | None:
    """The prefilling or receiving sequence that is about to fill the next block this one needs, if there is one.

    Waiting for it computes, or transfers, a shared prompt once. It cannot block for ever: whoever computes holds all
    its blocks, whoever receives has a lease, and both leave `computing` when they end in any way.
    """
    if not state.ledger.caching or sequence.logprobs_left or len(cached) >= _most_cached(state, sequence):
        return None
    return state.computing.get(sequence.hashes[len(cached)])


class Reserve:
    """Blocks to keep free for what runs already, summed once per scheduling round and kept up while admitting."""

    __slots__ = ("_blocks", "_set_aside", "_state")

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._blocks: int | None = None
        self._set_aside = 0

    def admits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether a waiting sequence may start: a free slot, blocks for all its tokens, and the reserve untouched.

        With no block held by anyone it always may: alone it fits.
        """
        state = self._state
        ledger = state.ledger
        if ledger.num_free == ledger.num_blocks and state.num_running == 0 and self._set_aside == 0:
            return True
        if state.num_running + self._set_aside >= state.config.max_running:
            return False
        fresh = state.layout.blocks_for(len(sequence.tokens)) - len(cached)
        free = ledger.num_free - ledger.num_unreferenced(cached)
        return free - fresh >= self._sum() + self._growth(sequence)

    def add(self, sequence: Sequence) -> None:
        """The sequence was admitted."""
        if self._blocks is not None:
            self._blocks += self._growth(sequence)

    def set_aside(self, sequence: Sequence) -> None:
        """Keep room for a sequence that waits and has the first claim."""
        self._blocks = self._sum() + self._state.layout.blocks_for(len(sequence.tokens)) + self._growth(sequence)
        self._set_aside += 1

    def _sum(self) -> int:
        if self._blocks is None:
            state = self._state
            running = (*state.prefilling.values(), *state.decoding.values(), *state.receiving.values())
            lengths, config, block_size = state.lengths, state.config, state.layout.block_size
            self._blocks = sum([growth_blocks(s, lengths, config, block_size) for s in running])
        return self._blocks

    def _growth(self, sequence: Sequence) -> int:
        state = self._state
        return growth_blocks(sequence, state.lengths, state.config, state.layout.block_size)

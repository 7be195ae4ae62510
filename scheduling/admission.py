"""Which requests are accepted at all, and which waiting prompts may take KV blocks now."""

from __future__ import annotations

from contracts.errors import InvalidRequest, Overloaded, PhaseServeError, Unavailable
from contracts.request import Request
from scheduling.block_ledger import extend_hashes
from scheduling.output_reserve import growth_blocks
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence
from scheduling.step_shape import prefill_s


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
    blocks = state.layout.blocks_for(prompt + output - 1)
    if blocks > state.ledger.num_blocks:
        message = f"the request needs {blocks} KV blocks, the replica has {state.ledger.num_blocks}"
        return InvalidRequest(message, param="max_tokens")
    return _overload(state, prompt)


def _overload(state: ReplicaState, prompt: int) -> Overloaded | None:
    """Bounds on what waits. A prompt longer than the token bound is accepted only when nothing else waits."""
    config = state.config
    if len(state.waiting) >= config.max_waiting:
        reason = f"{len(state.waiting)} requests wait already"
    elif state.waiting and state.waiting_tokens + prompt > config.max_waiting_tokens:
        reason = f"{state.waiting_tokens} prompt tokens wait already"
    else:
        return None
    return Overloaded(reason, retry_after_s=max(1.0, backlog_s(state)))


def uncached(sequence: Sequence) -> int:
    """Tokens still to compute, as far as known: for a waiting one less what the cache held when last looked."""
    return sequence.remaining - (0 if sequence.blocks else sequence.cached_guess)


def remaining_s(state: ReplicaState, sequence: Sequence) -> float:
    """Predicted time to prefill the rest of the sequence, alone."""
    left = uncached(sequence)
    return prefill_s(state.predictor.cost, len(sequence.tokens) - left, left, state.config.max_chunk)


def backlog_s(state: ReplicaState) -> float:
    """Predicted prefill time of everything accepted but not yet prefilled."""
    return sum(remaining_s(state, s) for s in (*state.prefilling.values(), *state.waiting.values()))


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
    """The prefilling sequence that is about to fill the next block this one needs, if there is one.

    Waiting for it computes a shared prompt once. It cannot block for ever: whoever computes holds all its blocks and
    leaves `computing` when it ends in any way.
    """
    if not state.ledger.caching or sequence.logprobs_left or len(cached) >= _most_cached(state, sequence):
        return None
    return state.computing.get(sequence.hashes[len(cached)])


class Reserve:
    """Blocks to keep free for what runs already, summed once per scheduling round and kept up while admitting."""

    __slots__ = ("_blocks", "_state")

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._blocks: int | None = None

    def admits(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether a waiting sequence may start: a free slot, blocks for all its tokens, and the reserve untouched.

        With nothing running it always may: alone it fits.
        """
        state = self._state
        if state.num_running == 0:
            return True
        if state.num_running >= state.config.max_running:
            return False
        if self._blocks is None:
            running = (*state.prefilling.values(), *state.decoding.values())
            self._blocks = sum(self._growth(s) for s in running)
        ledger = state.ledger
        fresh = state.layout.blocks_for(len(sequence.tokens)) - len(cached)
        free = ledger.num_free - ledger.num_unreferenced(cached)
        return free - fresh >= self._blocks + self._growth(sequence)

    def add(self, sequence: Sequence) -> None:
        """The sequence was admitted."""
        if self._blocks is not None:
            self._blocks += self._growth(sequence)

    def _growth(self, sequence: Sequence) -> int:
        state = self._state
        return growth_blocks(sequence, state.lengths, state.config, state.layout.block_size)

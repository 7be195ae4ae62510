"""What a finished step means for each sequence that took part: new tokens, ends, blocks for the prefix cache."""

from __future__ import annotations

from contracts.batch import PromptLogprobs, SampledToken, StepResult
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from scheduling.block_ledger import extend_hashes
from scheduling.handoff_sending import hand_over
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.sequence import Sequence, Status
from scheduling.sequence_ends import fail, finish


def apply_result(state: ReplicaState, step: StepInFlight, result: StepResult, now: float) -> list[SequenceOutput]:
    """All outputs of the step, in the order of its chunks."""
    sampled = {token.sequence_id: token for token in result.sampled}
    failed = dict(result.failed) if result.failed else {}
    reported = {entry.sequence_id: entry for entry in result.prompt_logprobs} if result.prompt_logprobs else {}
    outputs: list[SequenceOutput] = []
    block_size = state.layout.block_size
    caching = state.ledger.caching
    decoding = None if failed else Status.DECODING
    for sequence, chunk in zip(step.sequences, step.batch.chunks, strict=True):
        request_id = sequence.request_id
        if sequence.status is decoding:
            token = sampled.get(request_id)
            output = None if token is None else _gone_on(sequence, token)
            if output is not None:
                after = sequence.num_computed
                if caching and after % block_size == 0:
                    offer_to_cache(state, sequence, after - 1, after)
                outputs.append(output)
                continue
        if sequence.status is Status.ENDING:
            state.settle(sequence, now)
            continue
        if request_id in failed:
            outputs.append(fail(state, sequence, failed[request_id], now))
            continue
        before = sequence.num_computed
        sequence.num_computed = after = before + len(chunk.token_ids)
        if caching and after // block_size > before // block_size:
            offer_to_cache(state, sequence, before, after)
        report = _fresh_logprobs(sequence, reported.get(request_id)) if sequence.logprobs_left else ()
        if chunk.samples:
            token = sampled.get(request_id)
            if token is None:
                outputs.append(fail(state, sequence, "the engine returned no token", now))
            else:
                outputs.append(take_token(state, sequence, token, report, now))
        elif report:
            outputs.append(
                SequenceOutput(request_id=request_id, prompt_logprobs=report, first_index=sequence.num_output)
            )
    return outputs


def _gone_on(sequence: Sequence, sampled: SampledToken) -> SequenceOutput | None:
    """As `take_token`, for a decoding stream that goes on: most of what a core does. None, and nothing is done, where
    the stream has its end or log probabilities to tell with this token."""
    token, tokens = sampled.token_id, sequence.tokens
    first_index = len(tokens) - sequence.num_prompt
    if (
        token in sequence.stop_tokens
        or first_index >= sequence.max_output - 1
        or sampled.logprobs is not None
        or sequence.logprobs_left
    ):
        return None
    tokens.append(token)
    sequence.num_computed += 1
    sequence.last_token = token_ids = (token,)
    sequence.tokens_sent += 1
    sequence.deadline += sequence.tpot_s
    return SequenceOutput(request_id=sequence.request_id, token_ids=token_ids, first_index=first_index)


def fail_step(state: ReplicaState, step: StepInFlight, reason: str, now: float) -> list[SequenceOutput]:
    """The whole step raised: every sequence of its batch fails, nothing it wrote is cached."""
    outputs = []
    for sequence in step.sequences:
        if sequence.status is Status.ENDING:
            state.settle(sequence, now)
        else:
            outputs.append(fail(state, sequence, reason, now))
    return outputs


def take_token(
    state: ReplicaState,
    sequence: Sequence,
    sampled: SampledToken,
    report: tuple[PromptLogprobs, ...],
    now: float,
) -> SequenceOutput:
    """One output token, computed here or come with the KV: goes on decoding, is handed over, or was the last one."""
    token, first_index = sampled.token_id, sequence.num_output
    sequence.tokens.append(token)
    sequence.last_token = token_ids = (token,)
    sequence.tokens_sent += 1
    sequence.deadline += sequence.tpot_s  # stays infinite until the clock starts
    if sequence.status is not Status.DECODING:
        if not sequence.sends:
            state.start_decode(sequence, now)
        if sequence.first_token_at is None:
            sequence.first_token_at = now
    num_output = first_index + 1
    stopped = token in sequence.stop_tokens and num_output >= sequence.request.sampling.min_tokens
    logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
    ended = stopped or num_output >= sequence.max_output
    if not ended and not sequence.sends:
        is_first = first_index == len(sequence.request.output_token_ids)
        if not (logprobs or report or is_first):
            return SequenceOutput(request_id=sequence.request_id, token_ids=token_ids, first_index=first_index)
        # What was cached is said at once: the sequence may be ended, or moved, before it ends here.
        return SequenceOutput(
            request_id=sequence.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=report,
            usage=sequence.usage(now) if is_first else None,
            first_index=first_index,
        )
    usage = sequence.usage(now)
    how = FinishReason.STOP if stopped else FinishReason.LENGTH
    if ended:
        finish(state, sequence, now)
    else:
        how = FinishReason.HANDED_OVER
        hand_over(state, sequence, logprobs, now)
    return SequenceOutput(
        request_id=sequence.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=report,
        finish=how,
        stop_token_id=token if stopped else None,
        usage=usage,
        first_index=first_index,
    )


def offer_to_cache(state: ReplicaState, sequence: Sequence, before: int, after: int) -> None:
    """Blocks that became full in this step hold correct KV now: name them, so that others can share them."""
    block_size = state.layout.block_size
    extend_hashes(sequence.hashes, sequence.tokens, after, block_size)
    for index in range(before // block_size, after // block_size):
        block_hash = sequence.hashes[index]
        state.ledger.register(sequence.blocks[index], block_hash)
        if state.computing.get(block_hash) is sequence:
            del state.computing[block_hash]


def _fresh_logprobs(sequence: Sequence, entry: PromptLogprobs | None) -> tuple[PromptLogprobs, ...]:
    """What was not reported before: a preempted prompt is computed, and reports, twice."""
    if entry is None:
        return ()
    skip = max(0, sequence.logprobs_from - entry.first)
    end = entry.first + len(entry.entries)
    if end <= sequence.logprobs_from:
        return ()
    sequence.logprobs_from = end
    sequence.logprobs_left = end < sequence.num_prompt
    return (PromptLogprobs(entry.sequence_id, entry.first + skip, entry.entries[skip:]),)

"""How a sequence ends other than by its own output, and what that says to the other side of a hand-off."""

from __future__ import annotations

from contracts.errors import Cancelled, EngineFailure, HandoffFailed, PhaseServeError
from contracts.handoff import FINISHED
from contracts.replica_io import SequenceOutput, StopKV
from contracts.request import FinishReason
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence

RETRY_AFTER_S = 1.0


def fail(state: ReplicaState, sequence: Sequence, reason: str, now: float) -> SequenceOutput:
    """End one sequence with an engine failure."""
    return _end(state, sequence, FinishReason.ERROR, EngineFailure(reason), now)


def cancel(state: ReplicaState, sequence: Sequence, now: float) -> SequenceOutput:
    """End one sequence because nobody waits for it."""
    return _end(state, sequence, FinishReason.CANCELLED, Cancelled("the client is gone"), now)


def fail_handoff(state: ReplicaState, sequence: Sequence, reason: str, now: float) -> SequenceOutput:
    """End one sequence because its KV will not get from one replica to the other."""
    state.counters.handoffs_failed += 1
    error = HandoffFailed(reason, retry_after_s=RETRY_AFTER_S)
    return _end(state, sequence, FinishReason.ERROR, error, now)


def give_up_sending(state: ReplicaState, sequence: Sequence, reason: str, now: float) -> None:
    """Nobody will fetch the KV of a sequence whose end was said: free its blocks once the transfer is closed."""
    _stop(state, sequence, reason)
    state.end(sequence, now, finished=False)


def finish(state: ReplicaState, sequence: Sequence, now: float) -> None:
    """The sequence's own output ended it. Of a leg, the receiver is told that nothing comes."""
    _stop(state, sequence, FINISHED)
    state.lengths.observe(sequence.num_output)
    state.end(sequence, now, finished=True)


def leave_to_sender(state: ReplicaState, sequence: Sequence, now: float) -> SequenceOutput:
    """End one sequence whose KV is not needed: the sender's first token was its last, and the sender says its end."""
    usage = sequence.usage(now)
    _stop(state, sequence, FINISHED)
    state.end(sequence, now, finished=False)
    return SequenceOutput(
        request_id=sequence.request_id,
        finish=FinishReason.HANDED_OVER,
        usage=usage,
        first_index=sequence.num_output,
    )


def _end(
    state: ReplicaState, sequence: Sequence, how: FinishReason, error: PhaseServeError, now: float
) -> SequenceOutput:
    usage = sequence.usage(now)
    _stop(state, sequence, error.message)
    state.end(sequence, now, finished=False)
    return SequenceOutput(
        request_id=sequence.request_id,
        finish=how,
        error=error.info(),
        usage=usage,
        first_index=sequence.num_output,
    )


def _stop(state: ReplicaState, sequence: Sequence, reason: str) -> None:
    if sequence.transfer_open:
        state.transfer_actions.append(StopKV(sequence.request_id, reason))

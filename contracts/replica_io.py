"""Events into and actions out of one replica's core. Events are in the past tense, actions in the imperative."""

from __future__ import annotations

import msgspec

from contracts.batch import Batch, PromptLogprobs, StepResult, TokenLogprobs
from contracts.errors import ErrorInfo
from contracts.request import FinishReason, Request


class RequestArrived(msgspec.Struct, frozen=True):
    """A request was submitted to this replica."""

    request: Request


class ClientGone(msgspec.Struct, frozen=True):
    """Nobody waits for this request any more. Harmless for unknown or ended ids."""

    request_id: str


class StepDone(msgspec.Struct, frozen=True):
    """The step in flight ended after `duration_s`."""

    result: StepResult
    duration_s: float


class StepFailed(msgspec.Struct, frozen=True):
    """The step in flight raised; every sequence of its batch fails with `reason`."""

    step_index: int
    reason: str


class LeaseGranted(msgspec.Struct, frozen=True):
    """The cluster allows prefill for `duration_s` from now on (extends or shortens an earlier lease)."""

    duration_s: float


class LeaseRevoked(msgspec.Struct, frozen=True):
    """The cluster takes the prefill lease back."""


class DrainRequested(msgspec.Struct, frozen=True):
    """Accept nothing new, finish what is here, then say so."""


class Woken(msgspec.Struct, frozen=True):
    """Time passed; sent at least once a heartbeat."""


ReplicaEvent = (
    RequestArrived | ClientGone | StepDone | StepFailed | LeaseGranted | LeaseRevoked | DrainRequested | Woken
)


class SequenceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one ended sequence used. Times in seconds; `switch_wait_s` is first token to first decode step.

    `queue_s` begins when the replica accepted it: `Request.waited_s` comes on top.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    prefill_s: float
    switch_wait_s: float | None
    preemptions: int


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one sequence, and its end when `finish` is set (exactly once per accepted request).

    A token that ended the sequence (eos or stop token) is in `token_ids` and named by `stop_token_id`.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    error: ErrorInfo | None = None
    usage: SequenceUsage | None = None


class RunStep(msgspec.Struct, frozen=True):
    """Compute this batch now. At most one step is in flight."""

    batch: Batch


class Emit(msgspec.Struct, frozen=True):
    """Tell the router."""

    outputs: tuple[SequenceOutput, ...]


class Refuse(msgspec.Struct, frozen=True):
    """The request was never accepted."""

    request_id: str
    error: ErrorInfo


class SayDrained(msgspec.Struct, frozen=True):
    """Nothing is left; sent once after a drain."""


ReplicaAction = RunStep | Emit | Refuse | SayDrained

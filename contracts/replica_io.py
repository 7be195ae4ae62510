"""Events into and actions out of one replica's core. Events are in the past tense, actions in the imperative."""

from __future__ import annotations

import msgspec

from contracts.batch import Batch, PromptLogprobs, StepResult, TokenLogprobs
from contracts.errors import ErrorInfo
from contracts.handoff import HandoffReport, KVTicket
from contracts.phase import Role
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


class RoleAssigned(msgspec.Struct, frozen=True):
    """The cluster gives this replica another role. Streams that run already keep what they were promised: until they
    have ended (`ReplicaView.guarded` counts them) no prefill may take more of their time than their slack."""

    role: Role


class KVArriving(msgspec.Struct, frozen=True):
    """Receiver: a sign of life of this sequence's hand-off. `bytes_left` are still to come, at `bytes_per_s` (0: not
    known yet); `expected_s` more passes before the sender has computed the rest. The lease is extended accordingly.

    Sender: bytes of it get through, so its blocks are held longer for a receiver that has not acknowledged them yet.
    """

    request_id: str
    bytes_left: int
    bytes_per_s: float
    expected_s: float = 0.0


class KVReceived(msgspec.Struct, frozen=True):
    """Receiver: every layer of every block is there and verified. `token_ids` are the output tokens that the sender
    sampled (one), `logprobs` theirs if asked for."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    report: HandoffReport


class KVLost(msgspec.Struct, frozen=True):
    """Receiver: this sequence's KV will not come whole (sender's word, broken link, wrong count or checksum).
    `corrupt` when a checksum said so; `finished` when the sender's first token ended the sequence: no failure."""

    request_id: str
    reason: str
    corrupt: bool = False
    finished: bool = False


class KVSent(msgspec.Struct, frozen=True):
    """Sender: the receiver has acknowledged the commit; the blocks may go."""

    request_id: str
    num_bytes: int


class KVSendFailed(msgspec.Struct, frozen=True):
    """Sender: the hand-off failed; the receiver was told if it can be reached."""

    request_id: str
    reason: str


class KVClosed(msgspec.Struct, frozen=True):
    """Answer to `StopKV`: nothing reads or writes the sequence's blocks any more."""

    request_id: str


class LinkUp(msgspec.Struct, frozen=True):
    """A peer passed handshake and self-test: KV may be sent to it."""

    peer_id: str
    peer_incarnation: str
    transport: str
    device: str
    latency_s: float


class LinkDown(msgspec.Struct, frozen=True):
    """A peer cannot be sent to, and why."""

    peer_id: str
    peer_incarnation: str
    reason: str


class LinkMeasured(msgspec.Struct, frozen=True):
    """`num_bytes` crossed the link to a peer within `duration_s`; `probe` tells a probe from a real transfer.

    `at_least`: the transfer waited for the engine, so the link may be faster than that, but is not slower.
    """

    peer_id: str
    num_bytes: int
    duration_s: float
    probe: bool = False
    at_least: bool = False


class Woken(msgspec.Struct, frozen=True):
    """Time passed; sent at least once a heartbeat."""


ReplicaEvent = (
    RequestArrived
    | ClientGone
    | StepDone
    | StepFailed
    | LeaseGranted
    | LeaseRevoked
    | DrainRequested
    | RoleAssigned
    | KVArriving
    | KVReceived
    | KVLost
    | KVSent
    | KVSendFailed
    | KVClosed
    | LinkUp
    | LinkDown
    | LinkMeasured
    | Woken
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
    handoff: HandoffReport | None = None


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one sequence, and its end when `finish` is set (exactly once per accepted request).

    `first_index` is the position of `token_ids[0]` in the sequence's whole output: after a hand-off both replicas say
    the first token, and the router keeps one.
    A token that ended the sequence (eos or stop token) is in `token_ids` and named by `stop_token_id`. `usage` comes
    with the end, and with the first token that a replica which goes on with it says.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    error: ErrorInfo | None = None
    usage: SequenceUsage | None = None
    first_index: int = 0


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


class ReserveKV(msgspec.Struct, frozen=True, kw_only=True):
    """Receiver: `blocks` are reserved for tokens `skip_tokens` to `num_tokens - 1` of this sequence: issue a ticket,
    open its slot, tell the router."""

    request_id: str
    prefill_replica_id: str
    num_tokens: int
    skip_tokens: int
    blocks: tuple[int, ...]


class SendKV(msgspec.Struct, frozen=True, kw_only=True):
    """Sender: the sequence got its blocks; push its KV under `ticket`. `blocks` is its whole block table; the KV of
    its first `ready_tokens` tokens is there already (prefix cache), the rest comes with the steps that follow."""

    request_id: str
    ticket: KVTicket
    blocks: tuple[int, ...]
    ready_tokens: int


class CommitKV(msgspec.Struct, frozen=True, kw_only=True):
    """Sender: everything is computed, and these are the first output tokens. Stands before the next `RunStep`."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class StopKV(msgspec.Struct, frozen=True):
    """Either side: give this sequence's hand-off up and tell the peer `reason`; answer with `KVClosed`."""

    request_id: str
    reason: str


class ProbeLink(msgspec.Struct, frozen=True):
    """Measure the link to a peer with about `num_bytes`, without disturbing transfers; answer with `LinkMeasured`."""

    peer_id: str
    num_bytes: int


class SayDrained(msgspec.Struct, frozen=True):
    """Nothing is left; sent once after a drain."""


ReplicaAction = RunStep | Emit | Refuse | ReserveKV | SendKV | CommitKV | StopKV | ProbeLink | SayDrained

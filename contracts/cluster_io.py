"""Events into and actions out of the cluster core. Events are in the past tense, actions in the imperative."""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.errors import ErrorInfo
from contracts.phase import Layout, Role
from contracts.plan import Outcome, Plan
from contracts.prefixes import PrefixChange, PromptPrefix
from contracts.request import Slo
from contracts.views import ReplicaIdentity, ReplicaView

OnUnavailable = Literal["fail", "colocate"]
OnHandoffFailure = Literal["recompute", "fail"]


class ReplicaJoined(msgspec.Struct, frozen=True):
    """A replica finished its handshake. The same id with another incarnation replaces the old process."""

    identity: ReplicaIdentity
    view: ReplicaView


class ViewReported(msgspec.Struct, frozen=True):
    """A replica's heartbeat."""

    view: ReplicaView


class ReplicaLost(msgspec.Struct, frozen=True):
    """The replica is gone or silent. Requests on it are placed anew, by policy also those that stream already.

    `tokens_sent`: of the requests that had a leg here, how many output tokens the client has (the longest of its
    sequences); those left out have none.
    """

    replica_id: str
    reason: str
    tokens_sent: dict[str, int] = {}


class ClientRequestArrived(msgspec.Struct, frozen=True, kw_only=True):
    """A validated client request. `num_sequences` is its `n`; all of them are placed together.

    `layout` forces one layout (None: the deployment's own setting); `on_unavailable` says what happens when a forced
    or chosen hand-off cannot be had ("fail" or "colocate", None: the deployment's setting). `key` names whose fair
    share the request is taken from (empty: the common one). `prefix` names the prompt's full blocks, by which replicas
    that hold some of them are known.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    num_sequences: int = 1
    slo: Slo = Slo()
    priority: int = 0
    layout: Layout | None = None
    on_unavailable: OnUnavailable | None = None
    key: str = ""
    prefix: PromptPrefix | None = None


class FirstTokenSent(msgspec.Struct, frozen=True):
    """The first token of the request's current placement went to the client. Said again after it was placed anew:
    from then on it streams."""

    request_id: str


class PrefillFinished(msgspec.Struct, frozen=True):
    """All sequences of the request have the first token of its current placement; its prefill no longer counts as
    backlog. From here on the decode leg speaks for a disaggregated request, whatever becomes of the prefill leg."""

    request_id: str


class KVReserved(msgspec.Struct, frozen=True):
    """The decode leg of one sequence (number `sequence`) has its blocks and its ticket: its prefill may begin."""

    request_id: str
    sequence: int


class RequestRefused(msgspec.Struct, frozen=True):
    """A replica refused a dispatched request (it filled up since its last view), or gave it up (lost KV, drain).

    `replica_id` tells which leg of a disaggregated request it was. Tokens that were sent already stay valid: the
    request may be placed anew and continued. `tokens_sent` is how many the client has (the longest of its sequences).
    """

    request_id: str
    replica_id: str
    error: ErrorInfo
    tokens_sent: int = 0


class RequestEnded(msgspec.Struct, frozen=True):
    """The request finished, failed or was cancelled; nothing of it is left at the router."""

    request_id: str
    outcome: Outcome


class ClientLeft(msgspec.Struct, frozen=True):
    """The client of a pending or dispatched request is gone."""

    request_id: str


class PrefixesChanged(msgspec.Struct, frozen=True):
    """What a replica's prefix cache holds is different now."""

    replica_id: str
    incarnation: str
    change: PrefixChange


class RoleRequested(msgspec.Struct, frozen=True):
    """An operator wants a replica to have this role. `pinned`: the fleet planner leaves it alone from now on."""

    replica_id: str
    role: Role
    pinned: bool = True


class ReplicaDrainRequested(msgspec.Struct, frozen=True):
    """An operator wants a replica to leave the fleet once what runs there has ended."""

    replica_id: str


class LeaderChanged(msgspec.Struct, frozen=True):
    """Of several routers over one fleet one changes roles and proposes sizes: None when it is this one (as from the
    start), else the other's name. Prompts, turns and leases of its own requests every router decides about itself."""

    leader: str | None


class TimePassed(msgspec.Struct, frozen=True):
    """Sent a few times a second: leases are extended, pending requests tried again or expired."""


ClusterEvent = (
    ReplicaJoined
    | ViewReported
    | ReplicaLost
    | ClientRequestArrived
    | FirstTokenSent
    | PrefillFinished
    | KVReserved
    | RequestRefused
    | RequestEnded
    | ClientLeft
    | PrefixesChanged
    | RoleRequested
    | ReplicaDrainRequested
    | LeaderChanged
    | TimePassed
)


class Dispatch(msgspec.Struct, frozen=True):
    """Send the request to the replica of the plan (disaggregated: its decode leg; the prefill leg follows)."""

    request_id: str
    plan: Plan
    submit_index: int


class DispatchPrefill(msgspec.Struct, frozen=True):
    """Send the prefill leg of one sequence to the plan's prefill replica, with the ticket that was reserved."""

    request_id: str
    sequence: int
    replica_id: str
    submit_index: int


class GrantLease(msgspec.Struct, frozen=True):
    """Tell a replica that it may prefill for `duration_s`."""

    replica_id: str
    duration_s: float


class RevokeLease(msgspec.Struct, frozen=True):
    """Tell a replica to go back to decode."""

    replica_id: str


class CancelOn(msgspec.Struct, frozen=True):
    """Tell a replica that nobody waits for the request."""

    replica_id: str
    request_id: str


class RefuseRequest(msgspec.Struct, frozen=True):
    """Answer the client with an error; the request was never (or is no longer) placed."""

    request_id: str
    error: ErrorInfo


class SetRole(msgspec.Struct, frozen=True):
    """Tell a replica to have another role from now on (repeated until its view says that it has it)."""

    replica_id: str
    role: Role


class DrainReplica(msgspec.Struct, frozen=True):
    """Tell a replica to accept nothing new, finish what it has, and leave."""

    replica_id: str


class ProposeReplicas(msgspec.Struct, frozen=True):
    """The fleet would do better with `change` more replicas (fewer, when negative), for `reason`. Whoever can start and
    stop replicas may follow it; a replica that is to go is drained with `DrainReplica` first. `spared` is the one that
    can be spared best."""

    change: int
    reason: str
    spared: str | None = None


ClusterAction = (
    Dispatch
    | DispatchPrefill
    | GrantLease
    | RevokeLease
    | CancelOn
    | RefuseRequest
    | SetRole
    | DrainReplica
    | ProposeReplicas
)

"""Which transports to try between two replicas, in which order, and whether what came up is good enough. Pure.

The sending side calls `order` with what works in its process and the endpoints that the receiver told; it connects to
the first candidate that passes its self-test, and asks `refusal` before it uses it.

Order of `auto`: `cma` on one host (one copy by the kernel, no network), where this host has RDMA `nixl` and `ucx`, then
`tcp`. Over TCP both were slower than `tcp` and cost more per byte (`transfer_bench`), so without RDMA they are not even
loaded. `loopback` only when asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvtransfer.config import TransferConfig

FOR_RDMA = ("nixl", "ucx")
NO_RDMA = "no RDMA here, and over TCP plain sockets do as well"
_NAMES = ("cma", "nixl", "ucx", "tcp")
_RDMA_PREFIXES = ("rc", "dc", "ud", "gga", "mlx5", "ib", "roce", "bnxt", "efa", "irdma", "rxe", "siw", "hns")


@dataclass(frozen=True, slots=True)
class OwnSide:
    """What this process can do. `working`: schemes whose transport is available here; `unavailable`: the others, with
    the reason. `rdma`: this host has a usable RDMA port. `host`: `process_memory.host_identity()`, empty if unknown."""

    working: frozenset[str]
    unavailable: Mapping[str, str]
    rdma: bool = False
    host: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint to try."""

    scheme: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Candidates, best first, and for every other scheme why it is not among them."""

    candidates: tuple[Candidate, ...]
    passed_over: Mapping[str, str]


def order(config: TransferConfig, own: OwnSide, endpoints: Sequence[str]) -> Choice:
    """What to try towards a receiver with these endpoints. Never names a scheme twice."""
    theirs: dict[str, str] = {}
    for endpoint in endpoints:
        theirs.setdefault(endpoint.partition("://")[0], endpoint)
    names = [config.transport] if config.transport != "auto" else list(_NAMES)
    candidates = []
    passed_over = {scheme: "not configured" for scheme in theirs if scheme not in names}
    for scheme in names:
        reason = _why_not(scheme, config, own, theirs)
        if reason:
            passed_over[scheme] = reason
        else:
            candidates.append(Candidate(scheme, theirs[scheme]))
    return Choice(tuple(candidates), passed_over)


def is_rdma(names: str) -> bool:
    """Whether these devices or UCX transports (by comma) are RDMA ones: `mlx5_0:1`, `rc_mlx5`; not `eth0`, `memory`."""
    return any(name.strip().startswith(_RDMA_PREFIXES) for name in names.split(","))


def refusal(config: TransferConfig, scheme: str, moves_over: str) -> str | None:
    """Why a connection that came up must not be used, or None.

    `moves_over`: what the bytes go over, as far as the transport knows: devices or UCX's active transports, by comma.
    """
    if config.require != "rdma" or (scheme in ("ucx", "nixl") and is_rdma(moves_over)):
        return None
    return (
        f"require = rdma, but {scheme} came up on {moves_over or 'nothing known'}: check that the host has an active"
        " RDMA port, /dev/infiniband and unlimited locked memory, and for ucx a libucx that was built with verbs"
    )


def _why_not(scheme: str, config: TransferConfig, own: OwnSide, theirs: Mapping[str, str]) -> str:
    if scheme in own.unavailable:
        return own.unavailable[scheme]
    if scheme not in own.working:
        return "not available here"
    if scheme not in theirs:
        return "the receiver does not offer it"
    if config.tls and scheme != "tcp":
        return "it cannot encrypt"
    if config.require == "rdma" and scheme not in ("ucx", "nixl"):
        return "it is not RDMA, which is required"
    if scheme == "cma" and theirs[scheme].removeprefix("cma://").partition("/")[0] != own.host:
        return "the receiver is on another host or in another namespace"
    if scheme in FOR_RDMA and config.transport == "auto" and not own.rdma and config.require != "rdma":
        return NO_RDMA
    return ""

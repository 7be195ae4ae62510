"""The transports that this process listens with and dials by: what the settings allow and the machine can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.errors import ConfigError
from kvtransfer.choose import FOR_RDMA, NO_RDMA, OwnSide, order
from kvtransfer.config import TransferConfig
from kvtransfer.process_memory import host_identity
from kvtransfer.protocol import Transport
from kvtransfer.transports import all_transports, rdma_port
from kvtransfer.wire import BulkOffer

REGISTERED_ONLY = ("nixl",)
"""Transports that send from registered memory only: not for blocks that are cut anew into memory of their own."""


@dataclass(frozen=True, slots=True)
class Roster:
    """`usable`: scheme -> transport, best first. `left_out`: why others are not. `own`: for `choose.order`."""

    config: TransferConfig
    usable: Mapping[str, Transport]
    left_out: Mapping[str, str]
    own: OwnSide

    def candidates(
        self, offers: Sequence[BulkOffer], block_sizes: tuple[int, int]
    ) -> tuple[list[tuple[BulkOffer, Transport]], str]:
        """What to try towards a receiver with these offers, best first, and why the rest is not tried.

        `block_sizes`: ours and its own.
        """
        by_scheme = {offer.scheme: offer for offer in offers}
        choice = order(self.config, self.own, [offer.endpoint for offer in offers])
        reasons = dict(choice.passed_over)
        found = []
        for candidate in choice.candidates:
            if block_sizes[0] != block_sizes[1] and candidate.scheme in REGISTERED_ONLY:
                sizes = "block_size: {} here, {} there".format(*block_sizes)
                reasons[candidate.scheme] = f"it cannot send to a receiver with other blocks ({sizes})"
            elif candidate.scheme in self.usable:
                found.append((by_scheme[candidate.scheme], self.usable[candidate.scheme]))
        return found, "; ".join(f"{scheme}: {reason}" for scheme, reason in sorted(reasons.items()))


def make_roster(config: TransferConfig) -> Roster:
    """Raises `ConfigError` when nothing can be used here, or when RDMA is required and this host has none."""
    rdma = config.transport in ("auto", "ucx", "nixl") and not config.tls and rdma_port(config.ucx.devices) is not None
    if config.require == "rdma" and not rdma:
        raise ConfigError("require = rdma, but this host has no active RDMA port", param="require")
    usable: dict[str, Transport] = {}
    left_out: dict[str, str] = {}
    for scheme, transport in all_transports(config).items():
        reason = _unwanted(config, scheme, rdma=rdma) or transport.unavailable()
        if reason is None and scheme == "ucx" and "nixl" in usable:
            # nixl brings a UCX of its own. With both in one process, UCXX's (1.21) has no registration cache, and
            # ending an endpoint with a rendezvous under way then crashes in ucp_memh_invalidate.
            reason = "nixl is used, and a process must not hold two copies of UCX"
        if reason is None:
            usable[scheme] = transport
        else:
            left_out[scheme] = reason
    if not usable:
        reasons = "; ".join(f"{scheme}: {reason}" for scheme, reason in left_out.items())
        raise ConfigError(f"no transport can be used here: {reasons}", param="transport")
    own = OwnSide(working=frozenset(usable), unavailable=left_out, rdma=rdma, host=host_identity())
    return Roster(config, usable, left_out, own)


def _unwanted(config: TransferConfig, scheme: str, *, rdma: bool) -> str | None:
    """Why it is not even tried: nobody would choose it."""
    if scheme != config.transport and (config.transport != "auto" or scheme == "loopback"):
        return "not configured"
    if config.require == "rdma" and scheme not in ("ucx", "nixl"):
        return "it is not RDMA, which is required"
    if scheme in FOR_RDMA and config.transport == "auto" and not rdma:
        return NO_RDMA
    return None

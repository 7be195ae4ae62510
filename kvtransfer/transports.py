"""Every transport that there is, by scheme. Each is one module, which alone imports its library."""

from __future__ import annotations

import functools
import logging

from kvtransfer.cma import CmaTransport
from kvtransfer.config import Faults, TransferConfig
from kvtransfer.faults import FaultyTransport
from kvtransfer.gid import RdmaPort, choose_rdma
from kvtransfer.interfaces import local_choice
from kvtransfer.loopback import LoopbackTransport
from kvtransfer.nixl import NixlTransport
from kvtransfer.protocol import Transport
from kvtransfer.tcp import TcpTransport
from kvtransfer.tls import TlsFiles
from kvtransfer.ucx import UcxTransport
from kvtransfer.ucx_settings import ucx_environment

log = logging.getLogger("phaseserve.kvtransfer")


def all_transports(config: TransferConfig) -> dict[str, Transport]:
    """Scheme -> transport, best first; whether one can be used here its `unavailable` says.

    With TLS only what encrypts, and what stays inside the process.

    Raises `ConfigError`: no usable address, or TLS files that cannot be read.
    """
    address = local_choice(config.host, config.device).address
    tls = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca) if config.tls else None
    transports: list[Transport] = [TcpTransport(address, silence_s=config.silence_s, tls=tls), LoopbackTransport()]
    if tls is None:
        port = rdma_port(config.ucx.devices)
        environment = ucx_environment(
            config.ucx,
            rdma=port is not None,
            rdma_only=config.require == "rdma",
            gid_index=port.gid_index if port is not None else None,
        )
        transports[:0] = [
            CmaTransport(silence_s=config.silence_s),
            NixlTransport(address, environment),
            UcxTransport(address, environment),
        ]
    if config.faults != Faults():
        transports = [FaultyTransport(transport, config.faults) for transport in transports]
    return {transport.scheme: transport for transport in transports}


@functools.cache
def rdma_port(devices: str) -> RdmaPort | None:
    """The RDMA port of this host, if any. Says once why one that is there is not used."""
    choice = choose_rdma(devices=devices)
    if choice.warning:
        log.warning("%s", choice.warning)
    return choice.port

"""Every transport that there is, by scheme. Each is one module, which alone imports its library."""

from __future__ import annotations

from kvtransfer.config import Faults, TransferConfig
from kvtransfer.faults import FaultyTransport
from kvtransfer.interfaces import local_choice
from kvtransfer.loopback import LoopbackTransport
from kvtransfer.protocol import Transport
from kvtransfer.tcp import TcpTransport
from kvtransfer.tls import TlsFiles


def all_transports(config: TransferConfig) -> dict[str, Transport]:
    """Scheme -> transport, best first; whether one can be used here its `unavailable` says.

    Raises `ConfigError`: no usable address, or TLS files that cannot be read.
    """
    address = local_choice(config.host, config.device).address
    tls = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca) if config.tls else None
    transports: list[Transport] = [
        TcpTransport(address, silence_s=config.silence_s, tls=tls),
        LoopbackTransport(),
    ]
    if config.faults != Faults():
        transports = [FaultyTransport(transport, config.faults) for transport in transports]
    return {transport.scheme: transport for transport in transports}

"""The address of the front door: is it free, and how is it reached from this machine."""

from __future__ import annotations

import ipaddress
import socket

from contracts.errors import ConfigError


def front_url(host: str, port: int) -> str:
    """The URL by which a client on this machine reaches a server that listens on `host` (any address: by loopback)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


def require_free(host: str, port: int) -> None:
    """Raises `ConfigError` when nothing could listen there now: before minutes of loading, not after them.

    Port 0 is refused: the router would take any port, and nobody would know which.
    """
    if port == 0:
        raise ConfigError("port 0 (any free one) is not possible here: say which", param="port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", param="port") from error

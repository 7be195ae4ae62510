"""TCP sockets as the data plane wants them, and endpoints as text: `tcp://10.0.0.1:7000`, `tcp://[fd00::1]:7000`."""

from __future__ import annotations

import ipaddress
import socket
import sys
from urllib.parse import urlsplit

from kvtransfer.protocol import TransferError

_BYTES_ACKED_AT = 120  # in struct tcp_info, since Linux 4.1
_NOT_SENT_AT = 144  # likewise, since Linux 4.6


def format_endpoint(scheme: str, host: str, port: int) -> str:
    """The endpoint of a numeric address or a name."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def parse_endpoint(endpoint: str, scheme: str) -> tuple[str, int]:
    """Host and port. Raises `TransferError` if it is not an endpoint of this scheme."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TransferError(f"{endpoint!r} is not an endpoint: {error}") from None
    if parts.scheme != scheme or not host or not port:
        raise TransferError(f"{endpoint!r} is not an endpoint of the form {scheme}://host:port")
    return host, port


def family_of(host: str) -> socket.AddressFamily:
    """The family of a numeric address; IPv4 for a name."""
    try:
        return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return socket.AF_INET


def listening(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket. Raises `TransferError` naming the address."""
    sock = socket.socket(family_of(host), socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(128)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise TransferError(f"cannot listen on {host}:{port}: {error}") from error
    return sock


def tune(sock: socket.socket, silence_s: float) -> None:
    """No Nagle, and a peer that vanished without a word is noticed by the kernel within about `silence_s`.

    Buffer sizes stay with the kernel: setting them turns its own tuning off, and it may grow them further than we may.
    Keepalive sees a silent peer only while nothing is unacknowledged; the user timeout covers the rest.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": max(1, round(silence_s / 2)),
        "TCP_KEEPINTVL": max(1, round(silence_s / 4)),
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": max(1, round(silence_s * 1000)),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def acknowledged_bytes(sock: socket.socket) -> int:
    """How many bytes the peer acknowledged so far (`tcpi_bytes_acked`); 0 where the kernel does not say."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 8)
    except (OSError, AttributeError):
        return 0
    return int.from_bytes(info[_BYTES_ACKED_AT:], sys.byteorder)


def unsent_bytes(sock: socket.socket) -> int:
    """How many bytes wait in this host's kernel for the network (`tcpi_notsent_bytes`); 0 where it does not say."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _NOT_SENT_AT + 4)
    except (OSError, AttributeError):
        return 0
    return int.from_bytes(info[_NOT_SENT_AT:], sys.byteorder)

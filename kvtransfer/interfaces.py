"""The addresses of this host, as the kernel tells them: netlink, ioctl, /proc and /sys; not Linux: the route trick."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
import sys
from array import array
from pathlib import Path

from kvtransfer.addresses import Choice, Interface, choose

_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_UNUSABLE = 0x08 | 0x40  # duplicate found, or the check for duplicates still runs
_HEADER = struct.Struct("=IHHII")
_IFADDRMSG = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_IFF_UP = 1
_SIOCGIFFLAGS = 0x8913
_SIOCETHTOOL = 0x8946
_ETHTOOL_GSET = 1
_IFREQ = struct.Struct("=16sH22x")
_RTF_UP, _RTF_REJECT = 0x1, 0x200
NETLINK_DEADLINE_S = 2.0


def local_choice(host: str = "", device: str = "") -> Choice:
    """`addresses.choose` over this host's addresses. Raises `ConfigError`."""
    return choose(list_interfaces(), host=host, device=device)


def list_interfaces() -> list[Interface]:
    """Every address of every interface, in the kernel's order."""
    metrics = {4: _default_routes_v4(), 6: _default_routes_v6()}
    found = []
    for name, address in _addresses():
        version = ipaddress.ip_address(address).version
        found.append(
            Interface(
                name=name,
                address=address,
                up=_is_up(name),
                speed_mbit=_speed(name),
                route_metric=metrics[version].get(name),
            )
        )
    return found


def interface_of(address: str) -> str | None:
    """Name of the interface with this address; None if no interface has it."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(wanted, ipaddress.IPv6Address) and wanted.ipv4_mapped is not None:
        wanted = wanted.ipv4_mapped
    for name, own in _addresses():
        if ipaddress.ip_address(own) == wanted:
            return name
    return "lo" if wanted.is_loopback else None


def _addresses() -> list[tuple[str, str]]:
    if not hasattr(socket, "AF_NETLINK"):
        return _routed_addresses()
    found = []
    for payload in _dump_addresses():
        _, _, flags, _, index = _IFADDRMSG.unpack_from(payload)
        attributes = _attributes(payload[_IFADDRMSG.size :])
        raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
        if raw is None or len(raw) not in (4, 16) or flags & _IFA_F_UNUSABLE:
            continue
        with contextlib.suppress(OSError):  # the interface went away meanwhile
            found.append((socket.if_indextoname(index), str(ipaddress.ip_address(raw))))
    return found


def _dump_addresses() -> list[bytes]:
    """Payloads of the RTM_NEWADDR messages of one dump (rtnetlink(7))."""
    request = _HEADER.pack(_HEADER.size + _IFADDRMSG.size, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0)
    request += _IFADDRMSG.pack(0, 0, 0, 0, 0)
    payloads: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(NETLINK_DEADLINE_S)
        sock.sendto(request, (0, 0))
        while True:
            data = sock.recv(1 << 16)
            while len(data) >= _HEADER.size:
                length, kind, _, _, _ = _HEADER.unpack_from(data)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _HEADER.size:
                    return payloads
                if kind == _RTM_NEWADDR:
                    payloads.append(data[_HEADER.size : length])
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def _routed_addresses() -> list[tuple[str, str]]:
    """The address that a datagram would leave from (nothing is sent), and loopback."""
    found = [("lo", "127.0.0.1"), ("lo", "::1")]
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((target, 9))
            found.append(("default", sock.getsockname()[0]))
    return found


def _is_up(name: str) -> bool:
    """By ioctl: /sys may belong to another network namespace."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
    except OSError:
        return True
    return bool(_IFREQ.unpack(answer)[1] & _IFF_UP)


def _speed(name: str) -> int | None:
    """Mbit/s by ioctl, since /sys may belong to another network namespace; None where the driver does not know
    (some virtual interfaces, Wi-Fi, no link)."""
    command = array("I", [_ETHTOOL_GSET, *[0] * 10])
    request = struct.pack("16sP16x", name.encode(), command.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, _SIOCETHTOOL, request)
    except OSError:
        return None
    # struct ethtool_cmd: the speed's lower half is the first 16 bits of its fourth word, the upper half of its eighth.
    low, high = command[3] & 0xFFFF, command[7] & 0xFFFF
    if sys.byteorder == "big":
        low, high = command[3] >> 16, command[7] >> 16
    speed = high << 16 | low
    return None if speed in (0, 0xFFFF, 0xFFFFFFFF) else speed


def _default_routes_v4() -> dict[str, int]:
    """Interface -> smallest metric of its default routes."""
    routes: dict[str, int] = {}
    for fields in _table("/proc/net/route", 8):
        name, destination, flags, metric, mask = fields[0], fields[1], fields[3], fields[6], fields[7]
        if destination == mask == "00000000" and int(flags, 16) & _RTF_UP and not int(flags, 16) & _RTF_REJECT:
            routes[name] = min(int(metric), routes.get(name, int(metric)))
    return routes


def _default_routes_v6() -> dict[str, int]:
    routes: dict[str, int] = {}
    for fields in _table("/proc/net/ipv6_route", 10):
        destination, prefix, metric, flags, name = fields[0], fields[1], fields[5], fields[8], fields[9]
        usable = int(flags, 16) & _RTF_UP and not int(flags, 16) & _RTF_REJECT if _is_hex(flags) else False
        if not destination.strip("0") and prefix == "00" and usable and name != "lo":
            routes[name] = min(int(metric, 16), routes.get(name, int(metric, 16)))
    return routes


def _table(path: str, columns: int) -> list[list[str]]:
    """The rows of a /proc table that have enough columns, without the heading."""
    try:
        rows = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return []
    return [row for row in rows if len(row) >= columns and row[0] != "Iface"]


def _is_hex(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return True

"""Which RDMA port to use, and which entry of its GID table: read from a tree like /sys/class/infiniband.

RoCE addresses a port by a GID: index 0 is usually RoCE v1 or a link-local address, neither of which is routed, and a
wrong one connects nothing ("retry exceeded"). Taken is a RoCE v2 entry with a global address, IPv4 or IPv6 alike, so
that fabrics with IPv6 only work. InfiniBand ports need no choice.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

INFINIBAND_TREE = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One usable port. `gid_index` is None on InfiniBand. `name` is what `UCX_NET_DEVICES` calls it."""

    name: str
    link_layer: str
    gid_index: int | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class RdmaChoice:
    """The port to use, or None and, if there were devices, a `warning` that says why TCP is used instead."""

    port: RdmaPort | None
    warning: str = ""


def choose_rdma(tree: Path = INFINIBAND_TREE, devices: str = "") -> RdmaChoice:
    """The first usable port, InfiniBand or RoCE. `devices`: only these (`mlx5_0:1,mlx5_1`), else all."""
    wanted = [name for name in devices.split(",") if name]
    reasons = []
    for device in sorted(tree.iterdir()) if tree.is_dir() else ():
        for port in sorted((device / "ports").glob("*"), key=lambda path: path.name):
            name = f"{device.name}:{port.name}"
            if wanted and name not in wanted and device.name not in wanted:
                continue
            found = _usable(name, port)
            if isinstance(found, RdmaPort):
                return RdmaChoice(found)
            reasons.append(found)
    if reasons:
        return RdmaChoice(None, "RDMA is not used, TCP instead: " + "; ".join(reasons))
    return RdmaChoice(None)


def _usable(name: str, port: Path) -> RdmaPort | str:
    """The port, or why it cannot be used."""
    state = _text(port / "state")
    if "ACTIVE" not in state:
        return f"{name} is {state or 'in an unknown state'}"
    link_layer = _text(port / "link_layer") or "InfiniBand"
    if link_layer != "Ethernet":
        return RdmaPort(name, link_layer)
    entries = _gids(port)
    routable = [(index, address) for index, kind, address in entries if kind == "RoCE v2" and _is_global(address)]
    if not routable:
        kinds = ", ".join(f"{index}: {kind} {address}" for index, kind, address in entries) or "no entry"
        return f"{name} has no RoCE v2 GID with a global address ({kinds})"
    # IPv4 first: where both are configured it is what the interface was meant to be reached by.
    index, address = min(routable, key=lambda entry: (entry[1].ipv4_mapped is None, entry[0]))
    return RdmaPort(name, link_layer, index, str(address.ipv4_mapped or address))


def _gids(port: Path) -> list[tuple[int, str, ipaddress.IPv6Address]]:
    """`(index, type, address)` of the entries that are in use."""
    entries = []
    for path in (port / "gids").glob("*"):
        text, kind = _text(path), _text(port / "gid_attrs" / "types" / path.name)
        try:
            address = ipaddress.IPv6Address(text)
            index = int(path.name)
        except ValueError:
            continue
        if kind and address != ipaddress.IPv6Address("::"):
            entries.append((index, kind, address))
    return sorted(entries)


def _is_global(address: ipaddress.IPv6Address) -> bool:
    """Routable within a site at least: private ranges count, link-local and loopback do not."""
    plain = address.ipv4_mapped or address
    return not (plain.is_link_local or plain.is_loopback or plain.is_multicast or plain.is_unspecified)


def _text(path: Path) -> str:
    """Content of one attribute; the kernel refuses to read the type of an empty entry."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

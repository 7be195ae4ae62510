"""Which of this host's addresses to listen on and to tell other hosts. Pure: a choice over a list of values.

What is configured wins. Otherwise an address must be one that another host can reach: not loopback, not link-local, not
of a container bridge or dummy interface (every host has 172.17.0.1). Among the rest the interface with the default
route wins, since that is the one which others are known to be reached over; a faster one is named as a warning.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from contracts.errors import ConfigError

# Interfaces whose addresses mean the same on every host, or mean nothing outside of one.
LOCAL_ONLY = (
    "docker", "br-", "cni", "cbr", "flannel", "cali", "cilium", "weave", "virbr", "lxcbr", "lxdbr", "podman", "dummy",
    "kube-", "nodelocaldns", "tunl", "vxlan", "ovs-", "antrea", "genev", "ip6tnl", "sit", "teql",
)  # fmt: skip
# A host's ends of virtual pairs: of containers as a rule, but in a network namespace the only link there is.
LAST_RESORT = ("veth", "tap", "vnet")
FAR_MORE = 2.0


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one network interface.

    `speed_mbit`: what the driver says, None if it says nothing. `route_metric`: metric of the default route over this
    interface in the address's family, None if it has none.
    """

    name: str
    address: str
    up: bool = True
    speed_mbit: int | None = None
    route_metric: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """`address` of `device` was chosen because of `reason`; `warnings` are for the log."""

    address: str
    device: str
    reason: str
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"address {self.address} of {self.device}: {self.reason}"


def unfit(interface: Interface) -> str | None:
    """Why no other host can use this address, or None."""
    address = ipaddress.ip_address(interface.address)
    if not interface.up:
        return "down"
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_unspecified or address.is_multicast:
        return "not a host's address"
    if interface.name.startswith(LOCAL_ONLY):
        return "container bridge, tunnel or dummy"
    return None


def choose(interfaces: list[Interface], *, host: str = "", device: str = "") -> Choice:
    """The address to use. Raises `ConfigError` naming what there is and which setting decides.

    `host`: one of this host's addresses (loopback is allowed here: all replicas are on one host then), or `localhost`.
    `device`: an interface, whatever its name; of its addresses the first that is not link-local, IPv4 before IPv6.
    """
    if host:
        return _of_host(interfaces, "127.0.0.1" if host == "localhost" else host, device)
    if device:
        return _of_device(interfaces, device)
    fit = [interface for interface in interfaces if unfit(interface) is None]
    if not fit:
        seen = ", ".join(f"{i.name} {i.address} ({unfit(i)})" for i in interfaces) or "none at all"
        raise ConfigError(
            f"no address that another host could reach; there are: {seen}. Set host or device", param="host"
        )
    best = min(fit, key=_rank)
    return Choice(best.address, best.name, _why(best, fit), _faster(best, fit))


def _rank(interface: Interface) -> tuple[bool, bool, int, int, bool, bool, str, int]:
    """Small is good. Total, so that the choice does not depend on the order of the list."""
    address = ipaddress.ip_address(interface.address)
    metric = interface.route_metric
    return (
        interface.name.startswith(LAST_RESORT),
        metric is None,
        metric or 0,
        -(interface.speed_mbit or 0),
        address.version == 6,
        address.version == 6 and address.is_private,  # unique local after global
        interface.name,
        int(address),
    )


def _why(best: Interface, fit: list[Interface]) -> str:
    devices = {interface.name for interface in fit}
    if len(devices) == 1:
        return "the only interface that other hosts can reach"
    if best.route_metric is not None:
        return f"has the default route; others: {', '.join(sorted(devices - {best.name}))}"
    return f"the fastest known of {', '.join(sorted(devices))}; none has a default route"


def _faster(best: Interface, fit: list[Interface]) -> tuple[str, ...]:
    """A warning for each usable interface that claims to be faster than the chosen one."""
    if best.speed_mbit is None:
        return ()
    faster = {
        interface.name: interface.speed_mbit
        for interface in fit
        if interface.name != best.name
        and interface.speed_mbit is not None
        and interface.speed_mbit > best.speed_mbit
        and interface.name.startswith(LAST_RESORT) <= best.name.startswith(LAST_RESORT)
    }
    return tuple(
        f"{name} is faster ({speed} Mbit/s) than {best.name} ({best.speed_mbit} Mbit/s): "
        f"set device = {name} if the other hosts reach it"
        for name, speed in sorted(faster.items())
    )


def faster_than(interfaces: list[Interface], device: str, bytes_per_s: float) -> str | None:
    """What to say when a link over `device` measures `bytes_per_s` and another interface claims far more; None else."""
    mbit = bytes_per_s / 125_000
    better = [
        interface
        for interface in interfaces
        if unfit(interface) is None
        and interface.name != device
        and interface.speed_mbit is not None
        and interface.speed_mbit > FAR_MORE * mbit
    ]
    if not better:
        return None
    best = max(better, key=lambda interface: (interface.speed_mbit or 0, interface.name))
    return (
        f"{mbit:.0f} Mbit/s over {device}, while {best.name} ({best.address}) claims {best.speed_mbit} Mbit/s:"
        f" set device = {best.name} on both sides if the other hosts reach it"
    )


def _of_host(interfaces: list[Interface], host: str, device: str) -> Choice:
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(f"host must be a numeric address of this host, not {host!r}", param="host") from None
    for interface in interfaces:
        if ipaddress.ip_address(interface.address) == wanted and device in ("", interface.name):
            return Choice(str(wanted), interface.name, "configured")
    if wanted.is_loopback and device in ("", "lo"):
        return Choice(str(wanted), "lo", "configured")  # all of 127/8 is this host
    seen = ", ".join(f"{i.address} ({i.name})" for i in interfaces) or "none"
    on_device = f" on {device}" if device else ""
    raise ConfigError(f"{host} is not an address of this host{on_device}; there are: {seen}", param="host")


def _of_device(interfaces: list[Interface], device: str) -> Choice:
    mine = [interface for interface in interfaces if interface.name == device]
    usable = [i for i in mine if i.up and not ipaddress.ip_address(i.address).is_link_local]
    if not usable:
        names = ", ".join(sorted({interface.name for interface in interfaces})) or "none"
        state = "is down or has no address" if mine else "does not exist or has no address"
        raise ConfigError(f"device {device} {state}; interfaces with addresses: {names}", param="device")
    best = min(usable, key=_rank)
    return Choice(best.address, device, "configured device")

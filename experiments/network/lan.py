"""A small Ethernet in network namespaces: one namespace per host, a bridge in ours, shaped and cut at will.

Needs `ip` and `tc` (iproute2) and the right to make namespaces: root, or `reexec_as_own_root()` at the start of a
program where unprivileged user namespaces are allowed. Nothing outside the namespaces and the bridge is touched, and
everything is gone when the `Lan` is closed or its process ends (a namespace lives as long as its holder).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

COMMAND_S = 20.0
MIN_BURST_BYTES = 64 * 1024
BURST_S = 1e-3
QUEUE_BYTES = 2 * 1024 * 1024
MIN_QUEUE_BYTES = 256 * 1024
NOBODY = "02:00:00:00:00:fe"
"""A hardware address that no host has."""
FRAME_SHARE = 1448 / 1514
"""TCP payload of a full frame at an MTU of 1500: what a shaped link can carry of its nominal rate at most."""


_numbers = itertools.count()


class LanError(Exception):
    """Namespaces cannot be made or set up here; the message says what is missing."""


@dataclass(slots=True)
class Host:
    """One namespace: `address` is reachable from ours and from the other hosts."""

    name: str
    address: str
    holder: subprocess.Popen[bytes]
    port: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that runs on this host."""
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--", *argv]


def missing() -> str | None:
    """Why no `Lan` can be made here, or None."""
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root (or an unprivileged user namespace: reexec_as_own_root)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=COMMAND_S, check=False)
    return None if tried.returncode == 0 else f"unshare --net: {tried.stderr.decode().strip()}"


def reexec_as_own_root(argv: Sequence[str]) -> None:
    """Where we are not root: run `argv` again in a user and network namespace of our own. Returns for root.

    Raises `LanError` where unprivileged user namespaces are not allowed.
    """
    if os.geteuid() == 0:
        return
    inside = ["unshare", "--user", "--map-root-user", "--net", "--kill-child"]
    tried = subprocess.run([*inside, "true"], capture_output=True, timeout=COMMAND_S, check=False)
    if tried.returncode != 0:
        raise LanError(f"neither root nor allowed to make a user namespace: {tried.stderr.decode().strip()}")
    sys.stdout.flush()
    os.execvp("unshare", [*inside, "--fork", *argv])


class Lan:
    """`hosts` namespaces on one bridge, by default in a subnet that goes with our process. A context manager."""

    def __init__(self, hosts: Sequence[str], subnet: str | None = None) -> None:
        reason = missing()
        if reason is not None:
            raise LanError(reason)
        tag = f"{os.getpid() % 100_000}n{next(_numbers)}"
        subnet = subnet or _free_subnet()
        self._bridge = f"pb{tag}"
        self.address = f"{subnet}.1"
        self.hosts: dict[str, Host] = {}
        self._more_bridges: list[str] = []
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for number, name in enumerate(hosts):
                self.hosts[name] = self._add(name, f"{subnet}.{number + 10}", f"pv{tag}x{number}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def shape(self, name: str, bytes_per_s: float | None, device: str = "eth0", queue_s: float | None = None) -> None:
        """What host `name` can send per second over `device`, in bytes on the wire (None: unlimited).

        The burst is 1 ms of the rate, 64 KiB at least: a larger one deceives short measurements, a smaller one starves.
        What waits is dropped over 2 MiB, or over `queue_s` of the rate (256 KiB at least): at a low rate 2 MiB of bulk
        data keep the control messages behind them waiting for seconds.
        """
        inside = self.hosts[name].command
        if bytes_per_s is None:
            subprocess.run(
                inside(["tc", "qdisc", "del", "dev", device, "root"]),
                capture_output=True,
                check=False,
                timeout=COMMAND_S,
            )
            return
        burst = int(max(MIN_BURST_BYTES, bytes_per_s * BURST_S))
        limit = QUEUE_BYTES if queue_s is None else int(max(MIN_QUEUE_BYTES, bytes_per_s * queue_s))
        rate = ["rate", f"{int(bytes_per_s * 8)}bit", "burst", str(burst), "limit", str(limit)]
        _run(*inside(["tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate]))

    def cut(self, name: str) -> None:
        """The cable of host `name` is pulled: no reset, no error, just silence."""
        _run("ip", "link", "set", self.hosts[name].port, "down")

    def mend(self, name: str) -> None:
        """The cable is plugged in again."""
        _run("ip", "link", "set", self.hosts[name].port, "up")

    def part(self, one: str, other: str | None = None) -> None:
        """Only these two hosts do not reach each other any more (`other` None: our own namespace), silently."""
        self.deafen(one, other)
        self.deafen(other, one)

    def deafen(self, name: str | None, to: str | None) -> None:
        """What `to` sends does not reach `name` any more; the other way is left as it is. `rejoin` undoes it."""
        words = ["neigh", "replace", self.address_of(name), "lladdr", NOBODY, "nud", "permanent"]
        self._ip(to, [*words, "dev", self._device_of(to)])

    def rejoin(self, one: str, other: str | None = None) -> None:
        """Undo `part` and `deafen`."""
        for here, there in ((one, other), (other, one)):
            with contextlib.suppress(LanError):  # only one of the two knew no way
                self._ip(here, ["neigh", "del", self.address_of(there), "dev", self._device_of(here)])

    def address_of(self, name: str | None) -> str:
        """The address of a host, or ours."""
        return self.address if name is None else self.hosts[name].address

    def add_dead_end(self, name: str, address: str, device: str = "dummy0") -> None:
        """An interface of host `name` that is up and leads nowhere, with an `address` (and its prefix length) as every
        host has it: what container bridges look like. A pair of its own, since not every kernel has dummies."""
        self._ip(name, ["link", "add", device, "type", "veth", "peer", "name", f"{device}end"])
        self._ip(name, ["addr", "add", address, "dev", device])
        for end in (device, f"{device}end"):
            self._ip(name, ["link", "set", end, "up"])

    def set_default_route(self, name: str) -> None:
        """Whatever host `name` has no network for goes to us (and no further)."""
        self._ip(name, ["route", "replace", "default", "via", self.address, "dev", "eth0"])

    def add_network(self, subnet: str = "10.231.8", device: str = "eth1") -> None:
        """A second card `device` in each host, on a bridge of its own that we are not on: `SUBNET.10` and so on."""
        bridge = f"{self._bridge}{len(self._more_bridges)}"
        _run("ip", "link", "add", bridge, "type", "bridge")
        self._more_bridges.append(bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, host in enumerate(self.hosts.values()):
            port = f"{host.port}{device[-1]}"
            _run("ip", "link", "add", port, "type", "veth", "peer", "name", device, "netns", str(host.holder.pid))
            _run("ip", "link", "set", port, "master", bridge)
            _run("ip", "link", "set", port, "up")
            self._ip(host.name, ["addr", "add", f"{subnet}.{number + 10}/24", "dev", device])
            self._ip(host.name, ["link", "set", device, "up"])

    def bytes_sent(self, name: str, device: str = "eth0") -> int:
        """Bytes that host `name` has put on the wire of `device` so far."""
        text = _run(*self.hosts[name].command(["cat", "/proc/net/dev"]))
        fields = next(line for line in text.splitlines() if f"{device}:" in line).split(":", 1)[1].split()
        return int(fields[8])

    def close(self) -> None:
        """End the holders (their namespaces and links go with them) and remove the bridge. Idempotent."""
        for host in self.hosts.values():
            with contextlib.suppress(LanError):  # the kernel takes its time to remove what a dead namespace leaves
                _run("ip", "link", "del", host.port)
            host.holder.kill()
            host.holder.wait(COMMAND_S)
            for pipe in (host.holder.stdin, host.holder.stdout):
                if pipe is not None:
                    pipe.close()
        self.hosts.clear()
        for bridge in (self._bridge, *self._more_bridges):
            with contextlib.suppress(LanError):
                _run("ip", "link", "del", bridge)

    def _device_of(self, name: str | None) -> str:
        return self._bridge if name is None else "eth0"

    def _ip(self, name: str | None, words: Sequence[str]) -> None:
        """Run `ip` on a host, or here."""
        argv = ["ip", *words]
        _run(*(argv if name is None else self.hosts[name].command(argv)))

    def _add(self, name: str, address: str, port: str) -> Host:
        holder = subprocess.Popen(["unshare", "--net", "--kill-child", "sh", "-c", "echo ready; exec cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert holder.stdout is not None
        host = Host(name, address, holder, port)
        self.hosts[name] = host
        if holder.stdout.readline() != b"ready\n":
            raise LanError(f"the namespace of {name} was not made")
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", port, "master", self._bridge)
        _run("ip", "link", "set", port, "up")
        for words in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
        ):
            _run(*host.command(["ip", *words]))
        return host


def _free_subnet() -> str:
    """`10.A.B` of which no interface of ours has an address: other processes have Lans too."""
    taken = _run("ip", "-4", "-o", "addr")
    start = os.getpid() * 16
    for number in range(start, start + 1000):
        subnet = f"10.{128 + number // 250 % 100}.{number % 250}"
        if f" {subnet}." not in taken:
            return subnet
    raise LanError("no subnet below 10.128.0.0/10 is free")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode != 0:
        raise LanError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout

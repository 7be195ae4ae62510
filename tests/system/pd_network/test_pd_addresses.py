"""Hosts with more than one address: what is told to others, what is used, and what is said (NET-4, NET-6, NET-7), and
a peer whose address leads nowhere beside a good one (RTR-6)."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAIR = {"p": Role.PREFILL, "d": Role.DECODE}
UNSET = {"transfer": {"host": ""}}  # the address of the data plane is to be found
KV_BYTES = 512  # a token


def data_addresses(net: Any) -> dict[str, list[str]]:
    """What each replica tells others."""
    shown = net.fleet.get("/fleet")["replicas"]
    return {one["replica_id"]: [urlsplit(text).hostname for text in one["data_endpoints"]] for one in shown}


@pytest.fixture(scope="module")
def with_bridges(start_net: Any) -> Iterator[Any]:
    """Both hosts have 172.17.0.1/16 on a bridge-like interface; nobody says which address to use."""

    def prepare(lan: Any) -> None:
        for name in ("p", "d"):
            lan.add_dead_end(name, "172.17.0.1/16")

    with start_net(PAIR, prepare=prepare, own={"p": UNSET, "d": UNSET}) as net:
        net.wait(net.usable)
        yield net


def test_the_same_bridge_on_both_hosts(with_bridges: Any) -> None:
    """NET-4: the transfer goes over the wire, and the log names the device."""
    net = with_bridges
    asked = net.ask(2000, on_unavailable="fail")
    with net.crossed(2000 * KV_BYTES):
        net.served(asked)
    assert net.link()["device"] == "eth0"
    assert "link to d: tcp over eth0" in net.log("p")
    for name in ("p", "d"):
        assert "of eth0: " in net.log(name)


def test_nothing_local_is_told_to_others(with_bridges: Any) -> None:
    """NET-6: no loopback, no link-local, no container bridge."""
    net = with_bridges
    told = data_addresses(net)
    assert told == {name: [net.lan.address_of(name)] for name in ("p", "d")}
    for address in (ipaddress.ip_address(text) for texts in told.values() for text in texts):
        assert not address.is_loopback
        assert not address.is_link_local


@pytest.mark.parametrize("transport", ["ucx", "nixl"])
def test_libraries_use_the_wire_too(start_net: Any, transport: str) -> None:
    """NET-4 and NET-6 with the libraries' own choice of devices, without a variable of theirs."""

    def prepare(lan: Any) -> None:
        for name in ("p", "d"):
            lan.add_dead_end(name, "172.17.0.1/16")

    transfer = {"transport": transport, "host": "", "connect_deadline_s": 15.0, "silence_s": 10.0}
    with start_net(PAIR, prepare=prepare, transfer=transfer, own={"p": UNSET, "d": UNSET}) as net:
        net.wait(net.usable, 60.0)
        asked = net.ask(2000, on_unavailable="fail")
        with net.crossed(2000 * KV_BYTES):
            net.served(asked)
        assert net.link()["transport"] == transport
        assert "172.17.0.1" not in str(data_addresses(net))


def test_a_slow_default_route_and_a_fast_network(start_net: Any) -> None:
    """NET-7: the default route's network has 100 Mbit/s, another one much more. Which one is used and how fast it is
    is known and counted on, and the other one is named."""

    def prepare(lan: Any) -> None:
        lan.add_network()
        for name in ("p", "d"):
            lan.set_default_route(name)
            lan.shape(name, 12.5e6)

    with start_net(PAIR, prepare=prepare, own={"p": UNSET, "d": UNSET}) as net:
        net.wait(net.usable)
        link = net.link()
        asked = net.ask(2000, on_unavailable="fail")
        net.served(asked)
        if link["device"] == "eth1":
            assert link["bytes_per_s"] > 12.5e6
            return
        assert link["bytes_per_s"] == pytest.approx(net.payload_rate(12.5e6), rel=0.2)
        net.wait(lambda: "eth1" in warnings(net.log("p")), 10.0)


def warnings(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if line.startswith("WARNING"))


def test_the_fast_network_by_configuration(start_net: Any) -> None:
    """NET-7, mended as the warning says."""

    def prepare(lan: Any) -> None:
        lan.add_network()
        for name in ("p", "d"):
            lan.set_default_route(name)
            lan.shape(name, 12.5e6)

    fast = {"transfer": {"host": "", "device": "eth1"}}
    with start_net(PAIR, prepare=prepare, own={"p": fast, "d": fast}) as net:
        net.wait(net.usable)
        before = net.lan.bytes_sent("p", "eth1")
        net.served(net.ask(2000, on_unavailable="fail"))
        assert net.lan.bytes_sent("p", "eth1") - before >= 2000 * KV_BYTES
        assert net.link()["device"] == "eth1"
        assert net.link()["bytes_per_s"] > 12.5e6


def test_a_peer_out_of_reach_beside_a_good_one(start_net: Any) -> None:
    """RTR-6: a decode replica whose data address leads nowhere costs nobody anything, and gets no hand-off."""
    roles = {"p": Role.PREFILL, "d": Role.DECODE, "bad": Role.DECODE}

    def prepare(lan: Any) -> None:
        lan.add_dead_end("bad", "192.0.2.1/32")

    own = {"bad": {"transfer": {"host": "192.0.2.1"}}}
    with start_net(roles, prepare=prepare, own=own) as net:
        net.wait(net.usable)
        net.wait(lambda: net.link("p", "bad")["why_not"] not in (None, "not shown"))
        net.served(net.ask(200, on_unavailable="fail"))
        took = []
        for _ in range(20):
            began_s = time.monotonic()
            net.served(net.ask(200, on_unavailable="fail"))
            took.append(time.monotonic() - began_s)
            assert net.last_plan()["replica_id"] == "d"
        assert max(took) < 3.0, took
        assert "192.0.2.1" in net.link("p", "bad")["why_not"]

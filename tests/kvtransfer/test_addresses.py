"""Which address other hosts are told: never one that they cannot use, always the same one, and always with a reason."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ConfigError
from kvtransfer.addresses import LAST_RESORT, LOCAL_ONLY, Interface, choose, faster_than, unfit
from kvtransfer.interfaces import interface_of, list_interfaces, local_choice

LO = Interface("lo", "127.0.0.1")
DOCKER = Interface("docker0", "172.17.0.1", speed_mbit=10_000)
ETH = Interface("eth0", "10.0.0.5", speed_mbit=1_000, route_metric=100)
FAST = Interface("eth1", "10.1.0.5", speed_mbit=100_000)

names = st.sampled_from(["lo", "eth0", "eth1", "ib0", "docker0", "br-12ab", "cni0", "veth0", "flannel.1", "dummy0"])
addresses = st.one_of(
    st.sampled_from(["127.0.0.1", "::1", "169.254.3.4", "fe80::1", "172.17.0.1", "10.0.0.7", "fd00::7", "2001:db8::7"]),
    st.ip_addresses().filter(lambda a: not a.is_multicast and not a.is_unspecified).map(str),
)
optional = st.one_of(st.none(), st.integers(0, 400_000))
interfaces = st.lists(st.builds(Interface, names, addresses, st.booleans(), optional, optional), max_size=6)


@given(interfaces, st.randoms(use_true_random=False))
def test_the_choice(found: list[Interface], chance: object) -> None:
    fit = [interface for interface in found if unfit(interface) is None]
    if not fit:
        with pytest.raises(ConfigError, match="Set host or device"):
            choose(found)
        return
    choice = choose(found)
    address = ipaddress.ip_address(choice.address)
    assert not address.is_loopback
    assert not address.is_link_local
    assert not choice.device.startswith(LOCAL_ONLY)
    assert any((i.name, i.address, i.up) == (choice.device, choice.address, True) for i in found)
    assert not choice.device.startswith(LAST_RESORT) or all(i.name.startswith(LAST_RESORT) for i in fit)
    assert choice.reason
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(shuffled) == choice


@given(interfaces, st.sampled_from([LO, ETH, DOCKER, Interface("eth0", "fe80::9")]))
def test_what_is_configured_wins(found: list[Interface], wanted: Interface) -> None:
    assert choose([*found, wanted], host=wanted.address).address == wanted.address
    others = [interface for interface in found if interface.name != wanted.name]
    if not ipaddress.ip_address(wanted.address).is_link_local:
        choice = choose([*others, wanted], device=wanted.name)
        assert (choice.address, choice.device) == (wanted.address, wanted.name)


def test_the_default_route_wins_and_a_faster_one_is_named() -> None:
    choice = choose([LO, DOCKER, FAST, ETH])
    assert (choice.device, choice.address) == ("eth0", "10.0.0.5")
    assert "default route" in choice.reason
    assert len(choice.warnings) == 1
    assert "eth1 is faster (100000 Mbit/s) than eth0 (1000 Mbit/s)" in choice.warnings[0]
    assert choose([LO, DOCKER, ETH]).warnings == ()


def test_without_a_default_route_the_fastest() -> None:
    slow = Interface("eth0", "10.0.0.5", speed_mbit=1_000)
    choice = choose([slow, FAST])
    assert choice.device == "eth1"
    assert "fastest" in choice.reason
    assert choice.warnings == ()


def test_the_only_link_of_a_network_namespace() -> None:
    choice = choose([LO, Interface("dummy0", "172.17.0.1"), Interface("veth0", "10.9.0.1", speed_mbit=10_000)])
    assert (choice.device, choice.reason) == ("veth0", "the only interface that other hosts can reach")


def test_an_ipv6_only_host() -> None:
    found = [Interface("lo", "::1"), Interface("eth0", "fe80::1"), Interface("eth0", "fd00::5", route_metric=1024)]
    assert choose(found).address == "fd00::5"
    assert choose([*found, Interface("eth0", "2001:db8:1::5", route_metric=1024)], device="eth0").device == "eth0"


def test_nothing_usable_names_everything() -> None:
    with pytest.raises(ConfigError) as refused:
        choose([LO, DOCKER, Interface("eth0", "169.254.1.1"), Interface("eth1", "10.0.0.1", up=False)])
    for words in (
        "lo 127.0.0.1 (loopback)",
        "docker0 172.17.0.1 (container",
        "eth0 169.254.1.1 (link-local)",
        "(down)",
    ):
        assert words in refused.value.message
    assert refused.value.param == "host"


@pytest.mark.parametrize(
    ("host", "device", "words"),
    [
        ("10.9.9.9", "", "not an address of this host; there are: 127.0.0.1 (lo), 10.0.0.5 (eth0)"),
        ("10.0.0.5", "eth1", "not an address of this host on eth1"),
        ("some.name", "", "numeric"),
        ("", "eth9", "eth9 does not exist"),
    ],
)
def test_a_wrong_setting_says_what_there_is(host: str, device: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose([LO, ETH], host=host, device=device)
    assert words in refused.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.9"])
def test_one_host(host: str) -> None:
    choice = choose([ETH], host=host)
    assert choice.device == "lo"
    assert ipaddress.ip_address(choice.address).is_loopback


def test_this_host() -> None:
    found = list_interfaces()
    assert ("lo", "127.0.0.1") in [(interface.name, interface.address) for interface in found]
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("::ffff:127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") is None
    assert local_choice("127.0.0.1").device == "lo"
    for interface in found:
        assert interface_of(interface.address) is not None
        socket.if_nametoindex(interface.name)


def test_a_link_far_below_what_another_interface_claims() -> None:
    slow, fast = Interface("eth0", "10.0.0.1", speed_mbit=10_000), Interface("eth1", "10.1.0.1", speed_mbit=25_000)
    said = faster_than([slow, fast], "eth0", 12.5e6)
    assert said is not None
    assert "eth1" in said
    assert "100 Mbit/s" in said
    assert faster_than([slow, fast], "eth1", 12.5e6) == faster_than([slow], "eth1", 12.5e6) != said
    assert faster_than([slow, fast], "eth0", 2e9) is None
    assert faster_than([slow, Interface("eth1", "10.1.0.1")], "eth0", 1e6) is None
    assert faster_than([slow, Interface("docker0", "172.17.0.1", speed_mbit=25_000)], "eth0", 1e6) is None

"""The order in which transports are tried, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.choose import Choice, OwnSide, is_rdma, order, refusal
from kvtransfer.config import TransferConfig, TransportName

HERE, THERE = "aa.1.2", "bb.1.2"
SCHEMES = ("cma", "nixl", "ucx", "tcp", "loopback")
RANK = {scheme: rank for rank, scheme in enumerate(SCHEMES)}
ENDPOINTS = {
    "cma": f"cma://{HERE}/phaseserve-1",
    "nixl": "nixl://10.0.0.1:1",
    "ucx": "ucx://10.0.0.1:2",
    "tcp": "tcp://10.0.0.1:3",
    "loopback": "loopback://1",
}
TLS: dict[str, Any] = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}


def own(*working: str, rdma: bool = False, host: str = HERE) -> OwnSide:
    missing = {scheme: "library missing" for scheme in SCHEMES if scheme not in working}
    return OwnSide(frozenset(working), missing, rdma, host)


def schemes(choice: Choice) -> list[str]:
    return [candidate.scheme for candidate in choice.candidates]


def test_auto_on_one_host_begins_with_shared_memory() -> None:
    choice = order(TransferConfig(), own(*SCHEMES), list(ENDPOINTS.values()))
    assert schemes(choice) == ["cma", "tcp"]
    assert "no RDMA here" in choice.passed_over["nixl"]
    assert "no RDMA here" in choice.passed_over["ucx"]
    assert choice.passed_over["loopback"] == "not configured"


def test_auto_between_hosts_with_rdma_begins_with_nixl() -> None:
    choice = order(TransferConfig(), own(*SCHEMES, rdma=True, host=THERE), list(ENDPOINTS.values()))
    assert schemes(choice) == ["nixl", "ucx", "tcp"]
    assert "another host" in choice.passed_over["cma"]


def test_a_network_namespace_is_another_host() -> None:
    other_namespace = own(*SCHEMES, host="aa.1.3")
    assert "cma" not in schemes(order(TransferConfig(), other_namespace, list(ENDPOINTS.values())))


def test_a_missing_library_is_named() -> None:
    choice = order(TransferConfig(transport="ucx"), own("tcp"), list(ENDPOINTS.values()))
    assert not choice.candidates
    assert choice.passed_over["ucx"] == "library missing"


def test_tls_leaves_only_what_encrypts() -> None:
    assert schemes(order(TransferConfig(**TLS), own(*SCHEMES, rdma=True), list(ENDPOINTS.values()))) == ["tcp"]


def test_required_rdma_is_never_tried_over_something_else() -> None:
    choice = order(TransferConfig(require="rdma"), own(*SCHEMES), list(ENDPOINTS.values()))
    assert schemes(choice) == ["nixl", "ucx"]
    assert "RDMA, which is required" in choice.passed_over["tcp"]


@pytest.mark.parametrize("moves_over", ["tcp", "eth0", "memory", "", "self,tcp", "unknown"])
def test_required_rdma_refuses_what_came_up_on_tcp(moves_over: str) -> None:
    config = TransferConfig(require="rdma")
    reason = refusal(config, "ucx", moves_over)
    assert reason is not None
    assert "require = rdma" in reason
    assert refusal(TransferConfig(), "ucx", moves_over) is None


@pytest.mark.parametrize("moves_over", ["mlx5_0:1", "rc_mlx5,tcp", "ud_verbs", "bnxt_re0:1", "self,rc_verbs"])
def test_required_rdma_accepts_rdma(moves_over: str) -> None:
    assert is_rdma(moves_over)
    assert refusal(TransferConfig(require="rdma"), "nixl", moves_over) is None
    assert refusal(TransferConfig(require="rdma"), "tcp", moves_over) is not None


names: st.SearchStrategy[TransportName] = st.sampled_from(("auto", "tcp", "ucx", "nixl", "cma", "loopback"))


@given(
    name=names,
    working=st.sets(st.sampled_from(SCHEMES)),
    offered=st.lists(st.sampled_from(sorted(ENDPOINTS.values())), max_size=8),
    rdma=st.booleans(),
    host=st.sampled_from([HERE, THERE, ""]),
    tls=st.booleans(),
)
def test_whatever_both_sides_have(
    name: TransportName, working: set[str], offered: list[str], rdma: bool, host: str, tls: bool
) -> None:
    if tls and name not in ("auto", "tcp"):
        name = "auto"
    config = TransferConfig(transport=name, **(TLS if tls else {}))
    choice = order(config, own(*working, rdma=rdma, host=host), offered)
    tried = schemes(choice)
    assert tried == sorted(set(tried), key=RANK.__getitem__), "best first, none twice"
    for candidate in choice.candidates:
        assert candidate.scheme in working
        assert candidate.endpoint in offered
        assert candidate.scheme == name or (name == "auto" and candidate.scheme != "loopback")
        assert candidate.scheme == "tcp" or not tls
        assert candidate.scheme != "cma" or host == HERE
    offered_schemes = {endpoint.partition("://")[0] for endpoint in offered}
    assert set(tried) | set(choice.passed_over) >= offered_schemes, "nothing is left out without a reason"
    assert not set(tried) & set(choice.passed_over)
    if name == "auto" and "tcp" in working and "tcp" in offered_schemes:
        assert tried[-1] == "tcp", "always something to fall back to"

"""The RDMA port and GID that are chosen, from trees as the kernel lays them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvtransfer.gid import RdmaPort, choose_rdma

Entry = tuple[str, str]
V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"
UNIQUE_LOCAL = "fd00:0000:0000:0007:0000:0000:0000:0005"
GLOBAL_6 = "2001:0db8:0000:0000:0000:0000:0000:0009"
MAPPED_4 = "0000:0000:0000:0000:0000:ffff:0a00:0007"
MAPPED_4_LINK_LOCAL = "0000:0000:0000:0000:0000:ffff:a9fe:0007"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
AddPort = Callable[..., Path]


@pytest.fixture
def add_port(tmp_path: Path) -> AddPort:
    def add(
        *gids: Entry, device: str = "mlx5_0", port: int = 1, link: str = "Ethernet", state: str = "4: ACTIVE"
    ) -> Path:
        base = tmp_path / device / "ports" / str(port)
        (base / "gids").mkdir(parents=True)
        (base / "gid_attrs" / "types").mkdir(parents=True)
        (base / "state").write_text(state + "\n")
        (base / "link_layer").write_text(link + "\n")
        for index, (address, kind) in enumerate(gids):
            (base / "gids" / str(index)).write_text(address + "\n")
            if kind:
                (base / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
        return tmp_path

    return add


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ([(LINK_LOCAL, V1), (LINK_LOCAL, V2), (MAPPED_4, V1), (MAPPED_4, V2)], 3),
        ([(LINK_LOCAL, V1), (LINK_LOCAL, V2), (GLOBAL_6, V1), (GLOBAL_6, V2)], 3),
        ([(LINK_LOCAL, V2), (UNIQUE_LOCAL, V2)], 1),
        ([(GLOBAL_6, V2), (MAPPED_4, V2)], 1),
        ([(EMPTY, ""), (EMPTY, V2), (GLOBAL_6, V2)], 2),
    ],
    ids=["ipv4", "ipv6 only", "site-local ipv6", "ipv4 before ipv6", "empty entries"],
)
def test_a_routable_v2_entry_is_taken(add_port: AddPort, gids: list[Entry], index: int) -> None:
    choice = choose_rdma(add_port(*gids))
    assert choice.port is not None
    assert choice.port.gid_index == index
    assert choice.port.name == "mlx5_0:1"
    assert not choice.warning


@pytest.mark.parametrize(
    "gids",
    [[], [(MAPPED_4, V1), (GLOBAL_6, V1)], [(LINK_LOCAL, V2)], [(MAPPED_4_LINK_LOCAL, V2)]],
    ids=["none", "v1 only", "link-local", "link-local ipv4"],
)
def test_without_one_there_is_a_warning_and_tcp(add_port: AddPort, gids: list[Entry]) -> None:
    choice = choose_rdma(add_port(*gids))
    assert choice.port is None
    assert "mlx5_0:1 has no RoCE v2 GID" in choice.warning
    assert "TCP" in choice.warning


def test_infiniband_needs_no_gid(add_port: AddPort) -> None:
    assert choose_rdma(add_port((LINK_LOCAL, V1), link="InfiniBand")).port == RdmaPort("mlx5_0:1", "InfiniBand")


def test_ports_that_are_down_are_passed_over(add_port: AddPort) -> None:
    add_port((MAPPED_4, V2), device="mlx5_0", state="1: DOWN")
    tree = add_port((MAPPED_4, V2), device="mlx5_1")
    choice = choose_rdma(tree)
    assert choice.port is not None
    assert choice.port.name == "mlx5_1:1"
    assert "mlx5_0:1 is 1: DOWN" in choose_rdma(tree, "mlx5_0").warning


@pytest.mark.parametrize("devices", ["mlx5_1", "mlx5_1:1", "eth0,mlx5_1:1"])
def test_only_the_devices_that_were_named(add_port: AddPort, devices: str) -> None:
    add_port((MAPPED_4, V2), device="mlx5_0")
    choice = choose_rdma(add_port((MAPPED_4, V2), device="mlx5_1"), devices)
    assert choice.port is not None
    assert choice.port.name == "mlx5_1:1"


def test_a_host_without_rdma_is_no_reason_to_warn(tmp_path: Path) -> None:
    for tree in (tmp_path, tmp_path / "absent"):
        choice = choose_rdma(tree)
        assert choice.port is None
        assert not choice.warning

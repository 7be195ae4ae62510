"""Links: encrypted ones, measured ones, slow ones, and probes that stand back."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contracts.errors import ConfigError
from kvtransfer.config import Faults
from kvtransfer.events import Arriving, Linked, Measured, Received, Sent, Unlinked

TABLE = tuple(range(64))


def test_encrypted_links(tcp_rig: Any, tls_files: Callable[[str], dict[str, str]]) -> None:
    """Members of one authority are linked; with another authority's certificate, or none, there is no link."""
    ours, theirs = tls_files("ours"), tls_files("theirs")
    giver, taker = tcp_rig.replica("p0", **ours), tcp_rig.replica("d0", **ours)
    tcp_rig.link(giver, taker)
    tcp_rig.hand_over(giver, taker, tcp_rig.ticket(taker, (1, 2), 32), (3, 4))
    for name, files in (("p1", theirs), ("p2", {})):
        stranger = tcp_rig.replica(name, **files)
        stranger.service.set_peers([taker.peer])
        assert stranger.until(Unlinked, "d0").reason
        assert not stranger.of(Linked)


def test_no_rdma_where_it_is_required(tcp_rig: Any) -> None:
    with pytest.raises(ConfigError, match="rdma"):
        tcp_rig.replica("p0", transport="auto", require="rdma")


def test_auto_takes_the_best_and_says_so(tcp_rig: Any) -> None:
    giver, taker = tcp_rig.replica("p0", transport="auto"), tcp_rig.replica("d0", transport="auto")
    tcp_rig.link(giver, taker)
    link = giver.until(Linked, "d0")
    assert link.transport != "loopback"
    assert link.device
    assert link.latency_s > 0.0
    received = tcp_rig.hand_over(giver, taker, tcp_rig.ticket(taker, (1, 2), 32), (3, 4))
    assert received.report.transport == link.transport
    time.sleep(0.15)
    assert f"to d0 by {link.transport} over {link.device}" in giver.service.describe()


def test_auto_meets_a_peer_with_tcp_only(tcp_rig: Any) -> None:
    giver, taker = tcp_rig.replica("p0", transport="auto"), tcp_rig.replica("d0")
    tcp_rig.link(giver, taker)
    assert giver.until(Linked, "d0").transport == "tcp"


def test_rtr_6_a_peer_that_never_answers_harms_no_other(tcp_rig: Any) -> None:
    """It takes connections and says nothing: its link is given up within the deadline, hand-offs to others go on."""
    giver, good = tcp_rig.replica("p0", connect_deadline_s=1.0), tcp_rig.replica("d0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        endpoints = (f"tcp://127.0.0.1:{port}",)
        mute = msgspec.structs.replace(good.peer, replica_id="d1", incarnation="silent", endpoints=endpoints)
        giver.service.set_peers([mute, good.peer])
        giver.until(Linked, "d0", within_s=15.0)
        for _ in range(20):
            tcp_rig.hand_over(giver, good, tcp_rig.ticket(good, (1, 2), 32), (3, 4))
        assert giver.until(Unlinked, "d1", within_s=15.0).reason
        tcp_rig.hand_over(giver, good, tcp_rig.ticket(good, (1, 2), 32), (3, 4))
    assert not [event for event in giver.of(Linked) if event.peer_id == "d1"]


def test_nothing_in_common_is_said(memory_rig: Any) -> None:
    giver, taker = memory_rig.replica("p0"), memory_rig.replica("d0", transport="tcp")
    giver.service.set_peers([taker.peer])
    reason = giver.until(Unlinked, "d0").reason
    assert "loopback" in reason
    assert "tcp" in reason


def test_a_probe_stands_back_for_a_transfer(memory_rig: Any) -> None:
    """A transfer that begins while the link is probed is done in about the time that it takes alone."""
    rate = 4e6
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=rate, spare_probes=False))
    giver.until(Measured, "d0")
    num_bytes = 64 * 3 * 2048
    probes = len(giver.of(Measured))
    giver.service.probe("d0", 8 << 20)
    time.sleep(0.2)
    ticket = memory_rig.ticket(taker, TABLE, 1024)
    start = time.monotonic()
    memory_rig.hand_over(giver, taker, ticket, TABLE)
    assert time.monotonic() - start < num_bytes / rate + 0.6
    time.sleep(0.3)
    assert not [one for one in giver.of(Measured)[probes:] if one.probe]
    giver.service.probe("d0", 1 << 18)
    giver.until(Measured, "d0", count=len(giver.of(Measured)) + 1)


def test_no_probe_while_a_transfer_runs(memory_rig: Any) -> None:
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=1e6))
    giver.until(Measured, "d0")
    ticket = memory_rig.ticket(taker, TABLE, 1024)
    memory_rig.begin(giver, taker, ticket, TABLE, 1024)
    taker.until(Arriving, ticket.ticket_id)
    giver.service.probe("d0", 1 << 20)
    giver.service.commit(ticket.ticket_id, b"")
    giver.until(Sent, ticket.ticket_id)
    assert len([one for one in giver.of(Measured) if one.probe]) == 1


def test_a_slow_link_still_delivers(memory_rig: Any) -> None:
    """Every bound follows from what the link does: a slow one means longer waits, not failures."""
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=150e3), silence_s=1.0, connect_deadline_s=8.0)
    ticket = memory_rig.ticket(taker, TABLE[:40], 640)
    received = memory_rig.hand_over(giver, taker, ticket, TABLE[:40])
    assert received.report.transfer_s > 1.0
    assert taker.until(Received, ticket.ticket_id).report.num_bytes == 40 * 3 * 2048


def test_three_transfers_measure_a_link(memory_rig: Any) -> None:
    slow, taker = memory_rig.pair(faults=Faults(bytes_per_s=8e6))
    slow.until(Measured, "d0")
    before = len(slow.of(Measured))
    for _ in range(3):
        memory_rig.hand_over(slow, taker, memory_rig.ticket(taker, TABLE, 1024), TABLE)
    real = [one for one in slow.of(Measured)[before:] if not one.probe and not one.at_least]
    assert real
    assert real[-1].num_bytes / real[-1].duration_s == pytest.approx(8e6, rel=0.25)

"""Who is let in, who is turned away and why, and what a link's end means for what was under way."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from contracts.errors import ConfigError
from contracts.kv import Fingerprint, KVLayout
from kvtransfer.events import Closed, Linked, Lost, Received, SendFailed, Sent, Unlinked


def test_a_ticket_is_valid_once(rig: Any) -> None:
    """Neither the sender, nor another member of the fleet, nor the receiver itself can use it again."""
    giver, taker = rig.pair()
    other = rig.replica("p1")
    rig.link(other, taker)
    ticket = rig.ticket(taker, (1, 2), 32)
    rig.hand_over(giver, taker, ticket, (3, 4))
    before = bytes(taker.memory)
    for replica in (giver, other):
        count = len(replica.of(SendFailed, ticket.ticket_id))
        replica.service.send(ticket, (5, 6), 32)
        replica.service.commit(ticket.ticket_id, b"again")
        assert "used" in replica.until(SendFailed, ticket.ticket_id, count=count + 1).reason
    taker.service.reserve(ticket, "p0")
    assert "used" in taker.until(Lost, ticket.ticket_id).reason
    assert bytes(taker.memory) == before
    assert len(taker.of(Received)) == 1


def test_a_ticket_is_for_its_sender_only(rig: Any) -> None:
    giver, taker = rig.pair()
    other = rig.replica("p1")
    rig.link(other, taker)
    ticket = rig.ticket(taker, (1, 2), 32)
    taker.service.reserve(ticket, "p0")
    other.service.send(ticket, (5, 6), 0)
    assert other.until(SendFailed, ticket.ticket_id).reason
    giver.service.send(ticket, (3, 4), 0)
    rig.compute(giver, ticket, 0, 32)
    taker.until(Received, ticket.ticket_id)
    rig.check(giver, taker, ticket, (3, 4))


def test_a_stranger_reads_and_writes_nothing(rig: Any) -> None:
    """Wrong secret, no secret, rubbish, silence, too much: nothing is told, nothing changes, members are served."""
    giver, taker = rig.pair()
    before = bytes(taker.memory)
    stranger = rig.replica("p9", secret="some other fleet's secret")
    stranger.service.set_peers([taker.peer])
    assert "are secret and TLS settings the same there?" in stranger.until(Unlinked, "d0").reason
    address = urlsplit(taker.endpoints[0])
    opened = []
    for rubbish in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x04abcd", os.urandom(5000)):
        sock = socket.create_connection((address.hostname, address.port), timeout=5.0)
        sock.sendall(rubbish)
        opened.append(sock)
    for sock in opened[1:]:
        with contextlib.suppress(ConnectionError):
            sock.settimeout(5.0)
            assert sock.recv(4096) == b""
    rig.hand_over(giver, taker, rig.ticket(taker, (1, 2), 32), (3, 4))
    for sock in opened:
        sock.close()
    assert taker.service.counters.refused_connections >= 5
    assert not stranger.of(Linked)
    untouched = [block for block in range(64) if block not in (1, 2)]
    assert (taker.pool[:, untouched].tobytes()) == bytes(len(before) * 62 // 64)


def test_fingerprints_that_do_not_fit_are_named(rig: Any, make_layout: Callable[..., KVLayout]) -> None:
    taker = rig.replica("d0")
    for name, fingerprint, words in (
        ("p0", Fingerprint(model_digest="other", layout=make_layout()), ("model_digest", "'other'", "'m'")),
        ("p1", Fingerprint(model_digest="m", layout=make_layout(num_layers=4)), ("num_layers", "4", "3")),
        ("p2", Fingerprint(model_digest="m", layout=make_layout(block_size=24)), ("block_size", "24", "16")),
        ("p3", Fingerprint(model_digest="m", layout=make_layout(), numerics="int8"), ("numerics", "'int8'", "''")),
    ):
        giver = rig.replica(name, fingerprint=fingerprint)
        giver.service.set_peers([taker.peer])
        reason = giver.until(Unlinked, "d0").reason
        assert all(word in reason for word in words), reason
        assert not giver.of(Linked)


def test_a_new_incarnation_is_a_new_peer(rig: Any) -> None:
    """The receiver is replaced on the same port: what was under way is lost at once, and nothing old is used."""
    giver = rig.replica("p0")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    old = rig.replica("d0", port=port)
    rig.link(giver, old)
    ticket = rig.ticket(old, (1, 2), 32)
    rig.begin(giver, old, ticket, (3, 4))
    old.service.close(2.0)
    giver.until(SendFailed, ticket.ticket_id)
    new = rig.replica("d0", port=port, incarnation="2")
    assert "incarnation" in _until_reason(giver, "incarnation")
    giver.service.set_peers([new.peer])
    giver.until(Linked, "d0", count=2)
    stale = rig.ticket(old, (1,), 16)
    giver.service.send(stale, (3,), 16)
    assert "no link" in giver.until(SendFailed, stale.ticket_id).reason
    rig.hand_over(giver, new, rig.ticket(new, (1, 2), 32), (3, 4))


def _until_reason(replica: Any, word: str) -> str:
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        for event in replica.of(Unlinked):
            if word in event.reason:
                return str(event.reason)
        time.sleep(0.02)
    raise AssertionError(replica.of(Unlinked))


def test_a_sender_that_restarts(rig: Any) -> None:
    """Its open tickets are lost, its new process begins anew under the same name."""
    old, taker = rig.pair()
    ticket = rig.ticket(taker, (1, 2), 32)
    rig.begin(old, taker, ticket, (3, 4))
    new = rig.replica("p0", incarnation="2")
    new.memory[:] = secrets.token_bytes(new.memory.nbytes)
    new.service.set_peers([taker.peer])
    new.until(Linked, "d0")
    assert "p0" in taker.until(Lost, ticket.ticket_id).reason
    old.service.close(2.0)
    rig.hand_over(new, taker, rig.ticket(taker, (1, 2), 32), (3, 4))


def test_peers_left_out_are_forgotten(rig: Any) -> None:
    giver, taker = rig.pair()
    ticket = rig.ticket(taker, (1, 2), 32)
    rig.begin(giver, taker, ticket, (3, 4), 16)
    giver.service.set_peers([])
    assert giver.until(Unlinked, "d0").peer_incarnation == "1"
    giver.until(SendFailed, ticket.ticket_id)
    taker.until(Lost, ticket.ticket_id)
    for replica in (giver, taker):
        replica.service.stop(ticket.ticket_id, "gone")
        replica.until(Closed, ticket.ticket_id, within_s=3.0)
    giver.service.set_peers([taker.peer])
    giver.until(Linked, "d0", count=2)
    rig.hand_over(giver, taker, rig.ticket(taker, (1, 2), 32), (3, 4))
    assert giver.of(Sent)


def test_a_peer_that_is_not_there_yet(rig: Any) -> None:
    """The link comes up by itself once the peer does."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    giver, later = rig.replica("p0"), rig.replica("d0", port=port, start=False)
    giver.service.set_peers([msgspec.structs.replace(later.peer, endpoints=(f"tcp://127.0.0.1:{port}",))])
    assert "cannot connect" in giver.until(Unlinked, "d0").reason
    later.endpoints = later.service.start(5.0)
    giver.until(Linked, "d0")


def test_wrong_settings_are_refused(memory_rig: Any) -> None:
    with pytest.raises(ConfigError, match="secret"):
        memory_rig.replica("a", secret="")
    first = memory_rig.replica("b")
    port = urlsplit(first.endpoints[0]).port
    second = memory_rig.replica("c", port=port, start=False)
    with pytest.raises(Exception, match="cannot listen"):
        second.service.start(5.0)

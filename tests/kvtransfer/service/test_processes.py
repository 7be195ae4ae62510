"""The other side dies or freezes in the middle of a hand-off: this side says so soon, and works on with others."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.handoff import Peer
from kvtransfer.events import Arriving, Closed, Linked, Lost, SendFailed

PROGRAM = Path(__file__).with_name("replica_process.py")
TABLE = tuple(range(32))


class Other:
    """A replica in another process."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name = name
        environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[3])}
        command = [sys.executable, str(PROGRAM), name, json.dumps(settings)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._lines: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.endpoints = tuple(self._lines.get(timeout=20.0)["endpoints"])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def until(self, kind: str, about: str) -> str:
        deadline = time.monotonic() + 15.0
        while True:
            said = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            if said[:2] == [kind, about]:
                return str(said[2])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10.0)
        self._reader.join(10.0)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it died with words of ours unread


@pytest.fixture
def start_other() -> Iterator[Callable[..., Other]]:
    """Starts replicas in processes of their own."""
    started: list[Other] = []

    def start(name: str, config: Any) -> Other:
        settings = json.loads(msgspec.json.encode(config))
        started.append(Other(name, **settings))
        return started[-1]

    yield start
    for other in started:
        other.end()


@pytest.mark.system
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_sender_dies(tcp_rig: Any, start_other: Callable[..., Other], how: signal.Signals) -> None:
    taker = tcp_rig.replica("d0", silence_s=1.0)
    giver = start_other("p0", taker.config)
    giver.tell("peers", msgspec.json.encode([taker.peer]).decode())
    giver.until("Linked", "d0")
    ticket = tcp_rig.ticket(taker, TABLE, 512)
    taker.service.reserve(ticket, "p0")
    time.sleep(0.05)
    giver.tell("send", msgspec.json.encode(ticket).decode())
    giver.tell("layer", ticket.ticket_id, 0, 512)
    taker.until(Arriving, ticket.ticket_id)
    giver.process.send_signal(how)
    start = time.monotonic()
    assert "p0" in taker.until(Lost, ticket.ticket_id).reason
    assert time.monotonic() - start < 5.0
    taker.service.stop(ticket.ticket_id, "lost")
    taker.until(Closed, ticket.ticket_id, within_s=3.0)
    second = tcp_rig.replica("p1")
    tcp_rig.link(second, taker)
    tcp_rig.hand_over(second, taker, tcp_rig.ticket(taker, TABLE, 512), TABLE)


@pytest.mark.system
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_receiver_dies(tcp_rig: Any, start_other: Callable[..., Other], how: signal.Signals) -> None:
    giver = tcp_rig.replica("p0", silence_s=1.0)
    taker = start_other("d0", giver.config)
    ours = tcp_rig.replica("d1")
    peer = Peer(replica_id="d0", incarnation="1", endpoints=taker.endpoints, fingerprint=giver.fingerprint)
    giver.service.set_peers([peer, ours.peer])
    giver.until(Linked, "d0")
    giver.until(Linked, "d1")
    ticket = msgspec.structs.replace(tcp_rig.ticket(ours, TABLE, 512), receiver_id="d0")
    taker.tell("reserve", "p0", msgspec.json.encode(ticket).decode())
    time.sleep(0.05)
    giver.service.send(ticket, TABLE, 0)
    giver.service.layer_done(ticket.ticket_id, 0, 512)
    taker.until("Arriving", ticket.ticket_id)
    taker.process.send_signal(how)
    start = time.monotonic()
    giver.service.layer_done(ticket.ticket_id, 1, 512)
    assert "d0" in giver.until(SendFailed, ticket.ticket_id).reason
    assert time.monotonic() - start < 5.0
    giver.service.stop(ticket.ticket_id, "failed")
    giver.until(Closed, ticket.ticket_id, within_s=3.0)
    tcp_rig.hand_over(giver, ours, tcp_rig.ticket(ours, TABLE, 512), TABLE)

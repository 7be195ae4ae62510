"""Roles change while clients stream: no request fails, no token differs, nothing stays, the layouts really change."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

MODEL = Path("smollm2-135m")
COST = {"a0": 0.002, "a1": 0.00005, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0002}
QUICK = ("--engine", "fake", *(word for k, v in COST.items() for word in ("--set", f"replica.fake.cost.{k}={v}")))
CYCLE = ({"r0": "alternating", "r1": "alternating"}, {"r0": "mixed", "r1": "mixed"}, {"r0": "prefill", "r1": "decode"})
LAYOUTS = ("phased", "colocated", "disaggregated")


def eventually(check: Callable[[], bool], deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


class Clients:
    """Streams without a pause, `count` at a time. Each prompt is known, so that its answer can be asked for again."""

    def __init__(self, server: Any, count: int) -> None:
        self.server = server
        self.answers: list[tuple[list[int], str]] = []
        self.failures: list[str] = []
        self.layouts: set[str] = set()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, number: int) -> None:
        choice = random.Random(number)
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                prompt = [choice.randrange(1000, 40000) for _ in range(choice.randrange(20, 400))]
                try:
                    self.answers.append((prompt, self._stream(client, prompt)))
                except (httpx.HTTPError, AssertionError) as error:
                    self.failures.append(f"{type(error).__name__}: {error}")

    def _stream(self, client: httpx.Client, prompt: list[int]) -> str:
        text, ended = "", False
        with client.stream("POST", f"{self.server.url}/v1/completions", json=body_of(self.server, prompt)) as response:
            assert response.status_code == 200, response.read()
            self.layouts.add(response.headers["x-phaseserve-layout"])
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
                ended = ended or line == "data: [DONE]"
        assert ended, "the stream has no end"
        return text


def body_of(server: Any, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": server.model, "prompt": prompt, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    return {**body, "stream": True, **fields}


def assign(server: Any, roles: dict[str, str]) -> None:
    for replica_id, role in roles.items():
        answer = httpx.post(f"{server.url}/fleet/replicas/{replica_id}/role", json={"role": role}, timeout=10)
        assert answer.status_code == 202, answer.text


def fleet(server: Any) -> dict[str, dict[str, Any]]:
    shown = httpx.get(f"{server.url}/fleet", timeout=10).json()["replicas"]
    return {replica["replica_id"]: replica for replica in shown}


def roles_of(server: Any) -> dict[str, str]:
    return {replica_id: replica["role"] for replica_id, replica in fleet(server).items()}


def nothing_left(server: Any) -> bool:
    replicas = fleet(server).values()
    busy = any(replica[name] for replica in replicas for name in ("running", "waiting", "receiving", "sending"))
    return not busy and all(replica["guarded"] == 0 for replica in replicas)


def free_blocks(server: Any) -> list[tuple[int, int]]:
    snapshot = httpx.get(f"{server.url}/decisions?limit=1", timeout=10).json()["fleet"]
    return [(r["view"]["free_blocks"], r["view"]["num_blocks"]) for r in snapshot["replicas"]]


def check_answers(server: Any, clients: Clients, count: int) -> None:
    """Each is what the server says again, now that nobody changes anything."""
    assert clients.failures == []
    assert len(clients.answers) > count
    for prompt, text in clients.answers[:: max(1, len(clients.answers) // count)]:
        assert server.text(prompt, max_tokens=40, ignore_eos=True) == text
    eventually(lambda: nothing_left(server))
    eventually(lambda: all(free == total for free, total in free_blocks(server)))


@pytest.fixture(scope="module")
def two(start: Any) -> Iterator[Any]:
    with start(MODEL, "--alternating", "2", *QUICK) as server:
        yield server


def test_a_whole_cycle_of_roles_under_load(two: Any) -> None:
    with Clients(two, 6) as clients:
        for roles, layout in [*zip(CYCLE, LAYOUTS, strict=True), (CYCLE[0], LAYOUTS[0])]:
            assign(two, roles)
            eventually(lambda roles=roles: roles_of(two) == roles)  # type: ignore[misc]
            clients.layouts.clear()
            eventually(lambda layout=layout: layout in clients.layouts)  # type: ignore[misc]
    check_answers(two, clients, 12)
    kinds = [d["kind"] for d in httpx.get(f"{two.url}/fleet/decisions", timeout=10).json()["decisions"]]
    assert kinds.count("role_changed") >= 6
    assert "role_given_up" not in kinds


def phaseserve(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cli", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_roles_by_the_command_line(two: Any) -> None:
    before = roles_of(two)
    done = phaseserve("fleet", "set-role", "r0", "mixed", "--no-pin", "--url", two.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("r0 is mixed (the planner may change it)")
    shown = phaseserve("fleet", "--url", two.url).stdout.splitlines()
    assert shown[0].split()[:2] == ["replica", "role"]
    assert [line.split()[:2] for line in shown[1:3]] == [["r0", "mixed"], ["r1", before["r1"]]]
    unknown = phaseserve("fleet", "set-role", "r7", "mixed", "--url", two.url)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "r7" in unknown.stderr
    nobody = phaseserve("fleet", "drain", "r0", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert phaseserve("fleet", "set-role", "r0", "prefiller").returncode == 2


@pytest.mark.slow
def test_a_drained_replica_leaves_and_stays_away(start: Any) -> None:
    with start(MODEL, "--mixed", "2", *QUICK) as server:
        with Clients(server, 4) as clients:
            eventually(lambda: len(clients.answers) > 8)
            assert phaseserve("fleet", "drain", "r1", "--url", server.url).returncode == 0
            eventually(lambda: roles_of(server) == {"r0": "mixed"})
            at = len(clients.answers)
            eventually(lambda: len(clients.answers) > at + 8)
        check_answers(server, clients, 8)
        assert sum("r1 was drained" in line for line in server.log) == 1
        assert phaseserve("fleet", "drain", "r0", "--url", server.url).returncode == 2


def pid_of(server: Any, replica_id: str) -> int:
    """The replica's process among the children of `up`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "cmdline").exists():
            line = (entry / "cmdline").read_bytes()
            mine = f'"parent_pid":{server.process.pid}'.encode()
            if mine in line and f'"replica_id":"{replica_id}"'.encode() in line:
                return int(entry.name)
    raise AssertionError(f"no process of {replica_id}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_changes_with_replicas_that_die_in_the_middle(start: Any, seed: int) -> None:
    """A replica's death may cost no answer either: its requests go on elsewhere."""
    choice = random.Random(seed)
    with start(MODEL, "--alternating", "3", *QUICK) as server:
        with Clients(server, 8) as clients:
            for _ in range(12):
                roles = {name: choice.choice(["alternating", "mixed", "prefill", "decode"]) for name in fleet(server)}
                assign(server, roles)
                if choice.random() < 0.25:
                    victim = choice.choice(sorted(roles))
                    os.kill(pid_of(server, victim), signal.SIGKILL)
                    eventually(lambda: len(fleet(server)) == 3, 60.0)
                eventually(lambda roles=roles: roles_of(server) == roles)  # type: ignore[misc]
                at = len(clients.answers)
                eventually(lambda at=at: len(clients.answers) > at + 4)  # type: ignore[misc]
        check_answers(server, clients, 30)

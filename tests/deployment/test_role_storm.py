"""Two operators contradict each other while every kind of request runs in too few blocks: each is answered right."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

MODEL = Path("smollm2-135m")
COST = {"a0": 0.002, "a1": 0.00005, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0002}
QUICK = ("--engine", "fake", *(word for k, v in COST.items() for word in ("--set", f"replica.fake.cost.{k}={v}")))
ROLES = ("alternating", "mixed", "prefill", "decode")
STORM_S = 15.0
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 3},
    {"logprobs": 3},
    {"stop": [" the", "a", "ing"]},
    {"temperature": 1.0, "seed": 7},
)
SHARED = [1000 + (i * 7907) % 40000 for i in range(300)]


def body_of(server: Any, choice: random.Random) -> dict[str, Any]:
    prompt = [choice.randrange(1000, 40000) for _ in range(choice.randrange(20, 400))]
    if choice.random() < 0.4:
        prompt = SHARED[: choice.randrange(100, 300)] + prompt[:50]
    body = {"model": server.model, "prompt": prompt, "max_tokens": choice.choice([1, 2, 20, 60, 120])}
    return {**body, "ignore_eos": True, "temperature": 0, **choice.choice(KINDS)}


def answer_of(client: httpx.Client, url: str, body: dict[str, Any]) -> list[tuple[Any, ...]]:
    answer = client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [
        (choice["index"], choice["text"], choice["finish_reason"], (choice["logprobs"] or {}).get("tokens"))
        for choice in answer.json()["choices"]
    ]


def leave_early(client: httpx.Client, url: str, body: dict[str, Any], after: int) -> None:
    with client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for number, line in enumerate(response.iter_lines()):
            assert not line.startswith("data: {") or "error" not in json.loads(line[6:]), line
            if number > after:
                return


def is_empty(server: Any) -> bool:
    replicas = httpx.get(f"{server.url}/fleet", timeout=10).json()["replicas"]
    names = ("running", "waiting", "receiving", "sending", "guarded")
    views = [r["view"] for r in httpx.get(f"{server.url}/decisions?limit=1", timeout=10).json()["fleet"]["replicas"]]
    idle = not any(replica[name] for replica in replicas for name in names)
    return idle and all(view["free_blocks"] == view["num_blocks"] for view in views)


@pytest.mark.parametrize("transport", ["tcp", "cma"])
def test_a_storm_of_roles(start: Any, transport: str) -> None:
    answers: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = []
    failures: list[str] = []
    over = threading.Event()

    def ask(server: Any, seed: int) -> None:
        choice = random.Random(seed)
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                body = body_of(server, choice)
                try:
                    if choice.random() < 0.2:
                        leave_early(client, server.url, body, choice.randrange(30))
                    else:
                        answers.append((body, answer_of(client, server.url, body)))
                except (httpx.HTTPError, AssertionError) as error:
                    failures.append(f"{type(error).__name__}: {error}")

    def operate(server: Any, seed: int) -> None:
        choice = random.Random(seed)
        while not over.is_set():
            wish = {"role": choice.choice(ROLES), "pinned": choice.random() < 0.5}
            path = f"/fleet/replicas/r{choice.randrange(3)}/role"
            status = httpx.post(f"{server.url}{path}", json=wish, timeout=10).status_code
            if status != 202:
                failures.append(f"{path}: {status}")
            over.wait(0.15)

    words = ("--alternating", "3", *QUICK, "--set", "replica.fake.num_blocks=80")
    with start(MODEL, *words, "--set", f"transfer.transport={transport}") as server:
        threads = [threading.Thread(target=ask, args=(server, seed)) for seed in range(10)]
        threads += [threading.Thread(target=operate, args=(server, seed)) for seed in (100, 101)]
        for thread in threads:
            thread.start()
        over.wait(STORM_S)
        over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert failures == []
        assert len(answers) > 100
        deadline = time.monotonic() + 30
        while not is_empty(server):
            assert time.monotonic() < deadline, "something was left"
            time.sleep(0.05)
        with httpx.Client(timeout=60) as client:
            for body, answer in answers[:: len(answers) // 50]:
                assert answer_of(client, server.url, body) == answer
        assert not [line for line in server.log if " ERROR " in line or " CRITICAL " in line]

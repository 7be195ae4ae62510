"""RTR: what a deployment of pools says of itself, and to whom it gives work, when something is wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.system

POOLS = ("--prefill", "1", "--decode", "1")
FAKE = ("--engine", "fake", "--set", "replica.fake.delays=false")
STRICT = ("--set", "cluster.layout=disaggregated", "--set", "cluster.on_unavailable=fail")
WISH = {"layout": "disaggregated", "on_unavailable": "fail"}


def prompt_of(length: int, salt: int) -> list[int]:
    return [1000 + (length * 7907 + salt * 104729 + i * 15485) % 40000 for i in range(length)]


def eventually(check: Callable[[], bool], deadline_s: float = 20.0) -> float:
    """Seconds it took."""
    begun = time.monotonic()
    while not check():
        assert time.monotonic() < begun + deadline_s, "did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - begun


def ready(server: Any) -> bool:
    return bool(httpx.get(f"{server.url}/health/ready", timeout=5).status_code == 200)


def idle(server: Any) -> bool:
    names = ("replica_running", "replica_receiving", "replica_sending", "replica_waiting", "requests_in_flight")
    return all(server.gauge(f"phaseserve_{name}") == 0 for name in names)


def pid_of(server: Any, replica_id: str) -> int:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            mine = f'"parent_pid":{server.process.pid}'.encode()
            if mine in line and f'"replica_id":"{replica_id}"'.encode() in line:
                return int(entry.name)
    raise AssertionError(f"no process of {replica_id}")


@contextlib.contextmanager
def frozen(server: Any, replica_id: str) -> Iterator[None]:
    pid = pid_of(server, replica_id)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_rtr_1_impatient_clients_are_no_failures_of_a_replica(pair: Any) -> None:
    def impatient(salt: int) -> None:
        with contextlib.suppress(httpx.TimeoutException):
            pair.post("/v1/completions", {"prompt": prompt_of(400, salt), "max_tokens": 20, "phaseserve": WISH}, 0.1)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(impatient, range(24)))
    for salt in range(5):
        pair.completion(prompt_of(100, 60 + salt), max_tokens=4, phaseserve=WISH)
    eventually(lambda: idle(pair))


def test_rtr_9_every_way_of_asking_has_its_answer(pair: Any) -> None:
    wish: Any = {"extra_body": {"phaseserve": WISH}}
    hi: Any = [{"role": "user", "content": "Hi"}]
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(model=pair.model, messages=hi, max_tokens=6, temperature=0, **wish)
        assert chat.choices[0].message.content is not None
        parts = client.chat.completions.create(
            model=pair.model, messages=hi, max_tokens=6, temperature=0, stream=True, **wish
        )
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == chat.choices[0].message.content
        told = client.chat.completions.create(
            model=pair.model, messages=hi, max_tokens=3, logprobs=True, top_logprobs=2, n=2, **wish
        )
        for choice in told.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content
        raw = client.completions.with_raw_response.create(model=pair.model, prompt="Hi", max_tokens=3, **wish)
        assert raw.headers["x-phaseserve-layout"] == "disaggregated"
        with pytest.raises(openai.BadRequestError, match="exceed the context") as refused:
            client.completions.create(model=pair.model, prompt=prompt_of(10, 1), max_tokens=5000, **wish)
        assert refused.value.body is not None
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="another", prompt="Hi", **wish)


@pytest.mark.slow
@pytest.mark.parametrize("replica_id", ["r0", "r1"])
def test_rtr_4_without_one_side_pools_that_must_are_not_ready(start: Any, replica_id: str) -> None:
    """And refuse at once; as soon as it goes on they serve again."""
    with start(Path("smollm2-135m"), *POOLS, *FAKE, *STRICT) as server:
        assert server.completion("hi", max_tokens=3)
        with frozen(server, replica_id), ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.post, "/v1/completions", {"prompt": prompt_of(300, 1), "max_tokens": 8})
            eventually(lambda: not ready(server), 10.0)
            begun = time.monotonic()
            refused = server.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
            assert time.monotonic() - begun < 3.0
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert waiting.result(40).status_code in {200, 503}
        eventually(lambda: ready(server), 20.0)
        assert server.completion("hi", max_tokens=3)
        eventually(lambda: idle(server))


@pytest.mark.slow
def test_rtr_7_streams_outlive_a_replica_that_goes_and_comes_back(start: Any, tiny_model: Path) -> None:
    """10 streams, their decode replica is out of the fleet for a while, 10 more: all right, and no count is left."""
    fields = {"max_tokens": 400, "ignore_eos": True}
    prompts = [prompt_of(60, salt) for salt in range(20)]
    with start(tiny_model, *POOLS) as server, ThreadPoolExecutor(10) as pool:
        streams = [pool.submit(server.text, prompt, **fields) for prompt in prompts[:10]]
        eventually(lambda: server.gauge("phaseserve_replica_running") > 0)
        with frozen(server, "r1"):
            eventually(lambda: any("replica r1" in line and "is gone" in line for line in server.log), 20.0)
            first = [stream.result(60) for stream in streams]
        eventually(lambda: sum("r1" in line and "joined" in line for line in server.log) == 2)
        second = list(pool.map(lambda prompt: server.text(prompt, **fields), prompts[10:]))
        eventually(lambda: idle(server))
        again = list(pool.map(lambda prompt: server.text(prompt, **fields), prompts))
        assert [*first, *second] == again
        negative = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if " -" in line[-20:]]
        assert not [line for line in negative if not line.startswith("#")]


@pytest.mark.slow
def test_rtr_3_an_overload_closes_nothing(start: Any) -> None:
    """Far more than fits: some are turned away by name, the others are served; afterwards everything is."""
    words = ("--set", "cluster.max_pending=8", "--set", "scheduling.max_running=4", "--set", "scheduling.max_waiting=4")
    with start(Path("smollm2-135m"), *POOLS, *FAKE, *words) as server:

        def ask(salt: int) -> httpx.Response:
            body = {"prompt": prompt_of(200, salt), "max_tokens": 200, "ignore_eos": True, "phaseserve": WISH}
            answer: httpx.Response = server.post("/v1/completions", body)
            return answer

        with ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(ask, range(128)))
        statuses = {answer.status_code for answer in answers}
        assert statuses <= {200, 429, 503}
        assert sum(answer.status_code == 200 for answer in answers) >= 8
        assert all("retry-after" in answer.headers for answer in answers if answer.status_code != 200)
        eventually(lambda: idle(server))
        assert [ask(1000 + salt).status_code for salt in range(10)] == [200] * 10

"""`phaseserve up --prefill N --decode M`: KV really moves, no prompt is computed twice, clients see none of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

POOLS = ("--prefill", "1", "--decode", "1")
FAKE = ("--engine", "fake", "--set", "replica.fake.delays=false")
SMALL_CHUNKS = ("--set", "scheduling.max_chunk=64", "--set", "scheduling.min_chunk=16")
LENGTHS = (1, 15, 16, 17, 100, 255, 512, 900)
WISH = {"layout": "disaggregated", "on_unavailable": "fail"}
BLOCK_TOKENS = 16
TINY_BLOCK_BYTES = 2 * 2 * 2 * BLOCK_TOKENS * 16 * 4  # layers x (keys, values) x heads x tokens x head_dim x float32


def prompt_of(length: int, salt: int = 0) -> list[int]:
    """Prompts of different lengths or salts share no first block."""
    return [1000 + (length * 7907 + salt * 104729 + i * 15485) % 40000 for i in range(length)]


def blocks_of(lengths: Any) -> int:
    return sum(-(-length // BLOCK_TOKENS) for length in lengths)


def counted(server: Any, name: str, replica: str) -> float:
    """One counter of one replica."""
    head = f'phaseserve_replica_{name}_total{{replica="{replica}"}}'
    lines = httpx.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(head))


def all_counted(server: Any) -> dict[str, float]:
    names = ("prompt_tokens_computed", "kv_bytes_in", "kv_bytes_out", "handoffs_in", "handoffs_failed")
    return {f"{name} {replica}": counted(server, name, replica) for name in names for replica in ("r0", "r1")}


def added(server: Any, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in all_counted(server).items()}


def eventually(check: Callable[[], bool], deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def idle(server: Any) -> bool:
    return all(server.gauge(f"phaseserve_replica_{name}") == 0 for name in ("running", "receiving", "sending"))


def choices(server: Any, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.completion(prompt, **fields)["choices"]
    return found


@pytest.fixture(scope="module")
def pd(start: Any, tiny_model: Path) -> Iterator[Any]:
    with start(tiny_model, *POOLS, *SMALL_CHUNKS) as server:
        yield server
        eventually(lambda: idle(server))


def test_kv_moves_and_the_text_stays_the_same(pd: Any, oracle: Any) -> None:
    prompts = [prompt_of(length) for length in LENGTHS]
    fields = {"max_tokens": 24, "ignore_eos": True}
    want = [oracle.text(prompt, **fields) for prompt in prompts]
    before = all_counted(pd)
    got = [pd.text(prompt, **fields, phaseserve=WISH) for prompt in prompts]
    assert got == want
    num_bytes = blocks_of(LENGTHS) * TINY_BLOCK_BYTES
    eventually(lambda: added(pd, before)["handoffs_in r1"] == len(LENGTHS))
    assert added(pd, before) == {
        "prompt_tokens_computed r0": sum(LENGTHS),
        "prompt_tokens_computed r1": 0.0,
        "kv_bytes_out r0": num_bytes,
        "kv_bytes_in r0": 0.0,
        "kv_bytes_out r1": 0.0,
        "kv_bytes_in r1": num_bytes,
        "handoffs_in r0": 0.0,
        "handoffs_in r1": len(LENGTHS),
        "handoffs_failed r0": 0.0,
        "handoffs_failed r1": 0.0,
    }
    decisions = pd.decisions()[: len(LENGTHS)]
    assert {(d["plan"]["layout"], d["plan"]["prefill_replica_id"], d["plan"]["replica_id"]) for d in decisions} == {
        ("disaggregated", "r0", "r1")
    }
    reported = [decision["outcome"]["handoff"]["num_bytes"] for decision in decisions]
    assert reported == [blocks_of([length]) * TINY_BLOCK_BYTES for length in reversed(LENGTHS)]


def test_the_layout_is_in_the_answer(pd: Any) -> None:
    answer = pd.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "phaseserve": WISH})
    assert answer.status_code == 200
    assert answer.headers["x-phaseserve-layout"] == "disaggregated"


def test_only_what_is_not_cached_crosses(pd: Any, oracle: Any) -> None:
    prompt = prompt_of(300, salt=1)
    fields = {"max_tokens": 8, "ignore_eos": True}
    assert pd.text(prompt, **fields, phaseserve=WISH) == oracle.text(prompt, **fields)
    eventually(lambda: idle(pd))
    before = all_counted(pd)
    again = [*prompt[:290], *prompt_of(40, salt=2)]
    assert pd.text(again, **fields, phaseserve=WISH) == oracle.text(again, **fields)
    eventually(lambda: added(pd, before)["handoffs_in r1"] == 1)
    assert added(pd, before)["kv_bytes_in r1"] == (blocks_of([330]) - 290 // BLOCK_TOKENS) * TINY_BLOCK_BYTES
    assert added(pd, before)["prompt_tokens_computed r0"] == 330 - 290 // BLOCK_TOKENS * BLOCK_TOKENS
    assert added(pd, before)["prompt_tokens_computed r1"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 1},
        {"max_tokens": 12, "logprobs": 3},
        {"max_tokens": 12, "n": 2, "temperature": 1.0, "seed": 7},
        {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 3},
        {"max_tokens": 12, "frequency_penalty": 1.0, "presence_penalty": 0.5},
        {"max_tokens": 6, "echo": True, "logprobs": 2},
    ],
    ids=["one token", "logprobs", "n and seed", "seed", "penalties", "echo with logprobs"],
)
def test_what_was_asked_for_is_the_same_as_colocated(pd: Any, oracle: Any, fields: dict[str, Any]) -> None:
    prompt = prompt_of(150, salt=len(fields) + fields["max_tokens"])
    got = choices(pd, prompt, **fields, phaseserve=WISH)
    want = choices(oracle, prompt, **fields)
    for mine, theirs in zip(got, want, strict=True):
        assert (mine["text"], mine["finish_reason"]) == (theirs["text"], theirs["finish_reason"])
        assert (mine["logprobs"] is None) == (theirs["logprobs"] is None)
        if theirs["logprobs"] is not None:
            assert mine["logprobs"]["tokens"] == theirs["logprobs"]["tokens"]
            pairs = zip(mine["logprobs"]["token_logprobs"], theirs["logprobs"]["token_logprobs"], strict=True)
            assert all(a == b or abs(a - b) < 0.05 for a, b in pairs)


def test_a_stop_string_ends_it_and_frees_everything(pd: Any, oracle: Any) -> None:
    prompt = prompt_of(80, salt=5)
    full = oracle.text(prompt, max_tokens=40, ignore_eos=True)
    stop = full[len(full) // 2 :][:4]
    got = choices(pd, prompt, max_tokens=40, ignore_eos=True, stop=[stop], phaseserve=WISH)[0]
    assert got["finish_reason"] == "stop"
    assert got["text"] == full[: full.index(stop)]
    eventually(lambda: idle(pd))


def streamed(server: Any, body: dict[str, Any], stop_after: int = 1 << 30) -> str:
    text = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        chunks = 0
        for line in response.iter_lines():
            if line == "data: [DONE]" or chunks == stop_after:
                return text
            if line.startswith("data: "):
                chunks += 1
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    raise AssertionError("the stream has no end")


def test_a_stream_has_every_token_once(pd: Any, oracle: Any) -> None:
    prompt = prompt_of(120, salt=6)
    fields = {"model": pd.model, "prompt": prompt, "max_tokens": 32, "ignore_eos": True, "temperature": 0}
    text = streamed(pd, {**fields, "stream": True, "phaseserve": WISH})
    assert text == oracle.text(prompt, max_tokens=32, ignore_eos=True)


def test_clients_that_leave_leave_nothing(pd: Any) -> None:
    fields = {"model": pd.model, "max_tokens": 800, "ignore_eos": True, "temperature": 0, "stream": True}
    bodies = [{**fields, "prompt": prompt_of(200 + 50 * i, salt=8), "phaseserve": WISH} for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda numbered: streamed(pd, numbered[1], numbered[0]), enumerate(bodies)))
    eventually(lambda: idle(pd), 10.0)
    assert pd.text("and on it goes", max_tokens=3, phaseserve=WISH) is not None


def test_a_hand_off_that_cannot_be_had_is_refused_or_said(start: Any) -> None:
    with start(Path("smollm2-135m"), "--alternating", "1", *FAKE) as server:
        refused = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "phaseserve": WISH})
        assert refused.status_code == 503
        allowed = {"layout": "disaggregated", "on_unavailable": "colocate"}
        answer = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2, "phaseserve": allowed})
        assert answer.status_code == 200
        assert answer.headers["x-phaseserve-layout"] != "disaggregated"
        assert server.decisions()[0]["plan"]["fallback"]


def test_a_decode_replica_that_comes_back_is_another_one(start: Any) -> None:
    """XFER-4: nothing of the old process is believed of the new one, on the same address or not."""
    with start(Path("smollm2-135m"), *POOLS, *FAKE) as server:
        prompts = [prompt_of(length) for length in (5, 100, 700)]
        want = [server.text(prompt, max_tokens=8, phaseserve=WISH) for prompt in prompts]
        os.kill(pid_of(server, "r1"), signal.SIGKILL)
        eventually(lambda: sum("joined (decode)" in line for line in server.log) == 2, 60.0)

        def served() -> bool:
            body = {"prompt": prompts[0], "max_tokens": 8, "temperature": 0, "phaseserve": WISH}
            return bool(server.post("/v1/completions", body).status_code == 200)

        eventually(served)
        assert [server.text(prompt, max_tokens=8, phaseserve=WISH) for prompt in prompts] == want
        eventually(lambda: idle(server))


def pid_of(server: Any, replica_id: str) -> int:
    """The replica's process among the children of `up`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "cmdline").exists():
            line = (entry / "cmdline").read_bytes()
            mine = f'"parent_pid":{server.process.pid}'.encode()
            if mine in line and f'"replica_id":"{replica_id}"'.encode() in line:
                return int(entry.name)
    raise AssertionError(f"no process of {replica_id}")


def test_the_fleets_secret_is_on_no_command_line(start: Any) -> None:
    with start(Path("smollm2-135m"), *POOLS, *FAKE) as server:
        for replica_id in ("r0", "r1"):
            entry = Path(f"/proc/{pid_of(server, replica_id)}")
            environment = dict(pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if pair)
            secret = environment[b"PHASESERVE_FLEET_SECRET"]
            assert len(secret) >= 32
            assert secret not in (entry / "cmdline").read_bytes()
        assert secret.decode() not in "".join(server.log)


def test_the_start_says_transport_device_and_rate(start: Any) -> None:
    with start(Path("smollm2-135m"), *POOLS, *FAKE) as server:
        eventually(lambda: any("GB/s measured" in line for line in server.log))
        assert sum("moves KV" in line for line in server.log) == 2
        assert any("link to r1: " in line and " over " in line for line in server.log)


@pytest.mark.parametrize("cache", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_two_and_two_answer_what_one_answers(start: Any, tiny_model: Path, oracle: Any, cache: str) -> None:
    prompts = [prompt_of(length, salt=9) for length in LENGTHS]
    want = [oracle.text(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    words = ("--prefill", "2", "--decode", "2", *SMALL_CHUNKS, "--set", f"scheduling.prefix_cache={cache}")
    with start(tiny_model, *words) as server:

        def ask(prompt: list[int]) -> str:
            text: str = server.text(prompt, max_tokens=24, ignore_eos=True, phaseserve=WISH)
            return text

        with ThreadPoolExecutor(16) as pool:
            got = list(pool.map(ask, [*prompts, *prompts]))
        assert got == want + want
        plans = [decision["plan"] for decision in server.decisions()]
        assert {plan["layout"] for plan in plans} == {"disaggregated"}
        assert {plan["prefill_replica_id"] for plan in plans} == {"r0", "r1"}
        assert {plan["replica_id"] for plan in plans} == {"r2", "r3"}
        eventually(lambda: idle(server))

"""PAR: what OpenAI's parameters ask for is the same when prefill and decode are on two replicas; and HND-1."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system

WISH = {"layout": "disaggregated", "on_unavailable": "fail"}


def prompt_of(length: int, salt: int) -> list[int]:
    return [1000 + (length * 7907 + salt * 104729 + i * 15485) % 40000 for i in range(length)]


def shown(answer: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]]


def both(pair: Any, oracle: Any, prompt: Any, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer of the pair and that of one replica."""
    body = {"prompt": prompt, "temperature": 0, **fields}
    answer = pair.post("/v1/completions", {**body, "phaseserve": WISH})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-phaseserve-layout"] == "disaggregated"
    return answer.json(), oracle.post("/v1/completions", body).json()


def stream(pair: Any, prompt: Any, **fields: Any) -> tuple[list[str], dict[str, Any]]:
    """Text of each choice, and the usage, of a stream with exactly one end and one usage."""
    with openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.completions.create(
                model=pair.model, prompt=prompt, stream=True, stream_options={"include_usage": True}, **fields
            )
        )
    assert len({chunk.id for chunk in chunks}) == 1
    *parts, last = chunks
    assert last.choices == []
    assert all(part.usage is None and part.choices for part in parts)
    texts: dict[int, str] = {}
    ends: list[int] = []
    for choice in (part.choices[0] for part in parts):
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == sorted(texts)
    usage: dict[str, Any] = last.usage.model_dump()
    return [texts[index] for index in sorted(texts)], usage


@pytest.mark.parametrize("extra", [{}, {"ignore_eos": True}, {"stop": ["e", "a", " "]}])
def test_par_1_bounds_on_the_length_hold_over_both_legs(pair: Any, oracle: Any, extra: dict[str, Any]) -> None:
    """Without `min_tokens` these stop strings would end it within a few tokens."""
    fields = {"max_tokens": 50, "min_tokens": 40, **extra}
    mine, theirs = both(pair, oracle, prompt_of(60, 1), **fields)
    assert shown(mine) == shown(theirs)
    assert 40 <= mine["usage"]["completion_tokens"] <= 50
    named = {"max_tokens": 50, "temperature": 0}
    texts, usage = stream(pair, prompt_of(60, 1), **named, extra_body={"min_tokens": 40, **extra, "phaseserve": WISH})
    assert texts == [theirs["choices"][0]["text"]]
    assert usage["completion_tokens"] == theirs["usage"]["completion_tokens"]


def test_par_1_by_the_name_that_chats_use(pair: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 9, "min_tokens": 9}
    answer = pair.post("/v1/chat/completions", {**body, "phaseserve": WISH})
    assert answer.json()["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("max_tokens", [1, 2, 16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_par_3_n_choices(pair: Any, oracle: Any, max_tokens: int, temperature: float) -> None:
    prompt = prompt_of(40, max_tokens)
    fields = {"n": 3, "seed": 5, "max_tokens": max_tokens, "temperature": temperature}
    mine, theirs = both(pair, oracle, prompt, **fields)
    assert shown(mine) == shown(theirs)
    assert [choice["index"] for choice in mine["choices"]] == [0, 1, 2]
    if temperature == 0:
        assert len({choice["text"] for choice in mine["choices"]}) == 1
    assert mine["usage"]["prompt_tokens"] == 40
    assert mine["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]
    texts, usage = stream(pair, prompt, **fields, extra_body={"phaseserve": WISH})
    assert texts == [choice["text"] for choice in theirs["choices"]]
    assert usage["completion_tokens"] == theirs["usage"]["completion_tokens"]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 129])
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_par_4_prompt_logprobs_come_from_the_replica_that_computes_them(
    pair: Any, oracle: Any, length: int, max_tokens: int
) -> None:
    """Twice: the second time both replicas have the prompt in their caches."""
    for _ in range(2):
        mine, theirs = both(pair, oracle, prompt_of(length, 3), echo=True, logprobs=2, max_tokens=max_tokens)
        assert shown(mine) == shown(theirs)
        ours, wanted = mine["choices"][0]["logprobs"], theirs["choices"][0]["logprobs"]
        assert ours["tokens"] == wanted["tokens"]
        assert ours["text_offset"] == wanted["text_offset"]
        assert ours["token_logprobs"][0] is None
        assert len(ours["tokens"]) == length + max_tokens
        assert ours["token_logprobs"][1:] == pytest.approx(wanted["token_logprobs"][1:], abs=1e-3)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("prompt", "num_prompts"),
    [("hello", 1), (["hello", "you there"], 2), ([1, 2, 3], 1), ([[5, 6, 7], [8]], 2), (["hello"], 1)],
)
def test_par_6_every_shape_of_a_prompt(pair: Any, oracle: Any, prompt: Any, num_prompts: int, n: int) -> None:
    mine, theirs = both(pair, oracle, prompt, n=n, max_tokens=3, seed=1)
    assert shown(mine) == shown(theirs)
    assert [choice["index"] for choice in mine["choices"]] == list(range(num_prompts * n))
    assert mine["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 3},
        {"stop": ["e", "o"]},
        {"seed": 11, "temperature": 1.0},
        {"seed": 11, "temperature": 1.0, "top_k": 20, "top_p": 0.8, "min_p": 0.01},
        {"logit_bias": {"1000": 100, "1001": 99}},
        {"logit_bias": {"2": 100}},
        {"logit_bias": {"2": 100}, "min_tokens": 3},
        {"repetition_penalty": 1.5},
        {"response_format": {"type": "text"}, "user": "somebody"},
        {"priority": 3},
    ],
    ids=" ".join,
)
def test_par_8_every_field_reaches_both_legs(pair: Any, oracle: Any, fields: dict[str, Any]) -> None:
    mine, theirs = both(pair, oracle, prompt_of(50, 4), **{"max_tokens": 12, **fields})
    assert shown(mine) == shown(theirs)
    assert mine["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]


def test_par_8_an_unknown_field_is_refused_alike(pair: Any, oracle: Any) -> None:
    answers = [server.post("/v1/completions", {"prompt": "a", "extra_field": 1}) for server in (pair, oracle)]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["error"]["param"] == "extra_field"


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"max_tokens": 8, "logit_bias": {"2": 100}}])
def test_a_first_token_that_is_the_last_is_no_failed_hand_off(pair: Any, fields: dict[str, Any]) -> None:
    """Now and then the receiver hears of such an end before the router does."""
    failed = pair.gauge("phaseserve_replica_handoffs_failed_total")
    for salt in range(15):
        answer = pair.completion(prompt_of(40, 100 + salt), **fields, phaseserve=WISH)
        assert answer["usage"]["completion_tokens"] == 1
    assert pair.gauge("phaseserve_replica_handoffs_failed_total") == failed
    assert all(decision["plan"]["layout"] == "disaggregated" for decision in pair.decisions()[:15])


def test_cached_tokens_are_those_that_were_not_sent_again(pair: Any) -> None:
    """The receiver's count: whole blocks, and at least one token is always computed."""
    for length, cached in ((16, 0), (17, 16), (48, 32), (100, 96)):
        prompt = prompt_of(length, 5)
        first, again = (pair.completion(prompt, max_tokens=2, phaseserve=WISH)["usage"] for _ in range(2))
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert again["prompt_tokens_details"]["cached_tokens"] == cached


def test_hnd_1_a_parallel_layout_that_does_not_exist_is_refused_at_the_start() -> None:
    """A replica is one process on one device: there is no tensor or pipeline parallel layout to get wrong."""
    words = ["--prefill", "1", "--decode", "1", "--engine", "fake", "--set", "engine.tensor_parallel_size=2"]
    argv = [sys.executable, "-m", "cli", "up", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "tensor_parallel_size" in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_so_far_never_decreases(pair: Any) -> None:
    """STR-8: `prompt_tokens` stays, `completion_tokens` ends exact, over chunks and over the hand-off."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "test " * 500, "max_tokens": 5, "ignore_eos": True, "stream": True, "stream_options": options}
    answer = pair.post("/v1/completions", {**body, "temperature": 0, "phaseserve": WISH})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    usages = [json.loads(line)["usage"] for line in lines]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert len({usage["prompt_tokens"] for usage in usages}) == 1

"""OUT and SIL of the field bugs: other systems' wrong text and silent recomputation, as tests of the kind.

OUT-1 repeated text, OUT-5 other block sizes, OUT-7 over a limit, OUT-8 state that was left behind; SIL-1 and SIL-5 who
computed the prompt, SIL-3 policies without a prefill replica, SIL-6 bytes. OUT-4 (fingerprints) has replicas of its
own. SIL-6's lost record is `test_an_answer_without_a_hand_off_is_counted` of the router's tests.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

PAIR = {"p": Role.PREFILL, "d": Role.DECODE}
LIMIT = 1024
CONTEXT = 2048
CHUNKED = {"admission": "sarathi(128)", "max_chunk": 128}
WISH = {"layout": "disaggregated", "on_unavailable": "fail"}
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4
GREEDY = {"temperature": 0, "seed": 1, "ignore_eos": True}


def greedy(length: int, salt: int = 0, **fields: Any) -> dict[str, Any]:
    """Prompts of other lengths or salts share no first block."""
    draw = random.Random(f"{length} and {salt}")
    return {"prompt": [draw.randrange(3, 600) for _ in range(length)], **GREEDY, "max_tokens": 32, **fields}


@pytest.fixture(scope="module")
def pd(start_fleet: Any, tiny_model: Path) -> Iterator[Any]:
    with start_fleet(str(tiny_model), PAIR, core=CHUNKED, transfer={"transport": "tcp"}) as front:
        yield front


def compare(front: Any, oracle: Any, asked_of: Any, bodies: list[dict[str, Any]]) -> None:
    asked = asked_of(oracle, bodies, {"layout": "auto"})
    asked.same(front.answers(asked.wished, 8))


def added(front: Any, before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: value - before[name][key] for key, value in counts.items()}
        for name, counts in front.counted().items()
    }


def test_out_1_repeated_text(pd: Any, oracle: Any, asked_of: Any) -> None:
    prompt = [50, 60, 70, 80, 90, 100, 110, 120] * 200 + [7, 8, 9, 10, 11, 12]
    compare(pd, oracle, asked_of, [{"prompt": prompt, **GREEDY, "max_tokens": 64, "logprobs": 5}])


def test_out_8_the_whole_state_moves(pd: Any, oracle: Any, asked_of: Any) -> None:
    """Top five and log probabilities of every token, the first one included; exactly so many tokens as asked for."""
    lengths = [1 + 29 * i for i in range(50)]
    compare(pd, oracle, asked_of, [greedy(n, salt=8, max_tokens=128, logprobs=5) for n in lengths])


def test_sil_1_and_6_who_computes_and_what_moves(pd: Any) -> None:
    before = pd.counted()
    bodies = [greedy(1900, salt=100 + i, max_tokens=2) for i in range(20)]
    pd.answers([{**body, "phaseserve": WISH} for body in bodies], 4)
    pd.wait_nothing_left()
    new = added(pd, before)
    assert new["d"]["prompt_tokens_computed"] == 0
    assert new["p"]["prompt_tokens_computed"] == 20 * 1900
    assert new["d"]["kv_bytes_in"] >= 0.9 * 20 * 1900 * BYTES_PER_TOKEN
    assert new["d"]["handoffs_in"] == 20
    assert pd.metric('phaseserve_handoffs_total{outcome="unreported"}') == 0


def test_sil_1_one_token_is_computed_once(pd: Any) -> None:
    """With `max_tokens` 1 there is nothing to hand over, and nothing for the decode replica to compute."""
    before = pd.counted()
    bodies = [greedy(1800, salt=200 + i, max_tokens=1) for i in range(20)]
    pd.answers([{**body, "phaseserve": WISH} for body in bodies], 4)
    pd.wait_nothing_left()
    new = added(pd, before)
    assert (new["d"]["prompt_tokens_computed"], new["p"]["prompt_tokens_computed"]) == (0, 20 * 1800)


@pytest.mark.parametrize("length", [CONTEXT // 8, CONTEXT // 4, CONTEXT // 2, CONTEXT - 64])
def test_sil_5_every_length(pd: Any, oracle: Any, asked_of: Any, length: int) -> None:
    before = pd.counted()
    compare(pd, oracle, asked_of, [greedy(length, salt=5, max_tokens=48)])
    pd.wait_nothing_left()
    new = added(pd, before)
    assert new["d"]["prompt_tokens_computed"] == 0
    assert new["d"]["kv_bytes_in"] >= 0.9 * length * BYTES_PER_TOKEN


@pytest.mark.parametrize(
    ("transport", "blocks"), [("tcp", (16, 32)), ("tcp", (32, 16)), ("tcp", (16, 24)), ("nixl", (16, 32))], ids=str
)
def test_out_5_other_block_sizes(
    start_fleet: Any, tiny_model: Path, oracle: Any, asked_of: Any, transport: str, blocks: tuple[int, int]
) -> None:
    """Cut anew where one divides the other, else refused; nixl writes from the engine's own blocks only."""
    own = {"p": {"engine": {"block_size": blocks[0]}}, "d": {"engine": {"block_size": blocks[1]}}}
    bodies = [greedy(length, salt=9) for length in (15, 16, 17, 31, 32, 33, 48, 49)]
    fits = max(blocks) % min(blocks) == 0 and transport != "nixl"
    with start_fleet(str(tiny_model), PAIR, own=own, linked=fits, transfer={"transport": transport}) as front:
        if fits:
            compare(front, oracle, asked_of, bodies)
        else:
            refused_with(front, "block_size", *map(str, blocks))


@pytest.mark.parametrize(
    ("key", "here", "there"), [("dtype", "float16", "bfloat16"), ("dtype", "bfloat16", "float32")], ids=str
)
def test_out_4_what_differs_is_named(start_fleet: Any, tiny_model: Path, key: str, here: str, there: str) -> None:
    own = {"p": {"engine": {key: here}}, "d": {"engine": {key: there}}}
    with start_fleet(str(tiny_model), PAIR, own=own, linked=False, transfer={"transport": "tcp"}) as front:
        refused_with(front, key, here, there)


def test_out_4_another_revision_is_refused(start_fleet: Any, tiny_model: Path, other_model: Path) -> None:
    """The same shapes, other weights: no replica of the wrong one ever gets a request."""
    own = {"d": {"engine": {"model": str(other_model)}}}
    with start_fleet(str(tiny_model), PAIR, own=own, linked=False, joined=("p",)) as front:
        answer = front.post({**greedy(40), "phaseserve": WISH})
        assert answer.status_code == 503, answer.text
        assert "choices" not in answer.json()
        log = front.fleet.members["router"].log
        assert any("refused: it serves tiny (" in line and "not tiny (" in line for line in log), log


def refused_with(front: Any, *words: str) -> None:
    """503 that names the field and both values; nothing was computed or sent."""
    front.wait(lambda: any(link["why_not"] and words[0] in link["why_not"] for link in front.views()["p"]["links"]))
    answer = front.post({**greedy(40), "phaseserve": WISH})
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message
    counted = front.counted()
    assert {counts["kv_bytes_in"] + counts["prompt_tokens_computed"] for counts in counted.values()} == {0}


def test_out_7_over_the_limit(start_fleet: Any, tiny_model: Path, oracle: Any, asked_of: Any) -> None:
    settings = (f"router.max_context={LIMIT}",)
    with start_fleet(str(tiny_model), PAIR, router_settings=settings, transfer={"transport": "tcp"}) as front:
        fits = LIMIT - 8
        asked = asked_of(oracle, [greedy(length, max_tokens=8) for length in (fits - 1, fits)], {"layout": "auto"})
        asked.same(front.answers(asked.wished, 1))
        before = front.counted()
        for length in (fits + 1, LIMIT - 1, LIMIT, LIMIT + 1, CONTEXT - 1, CONTEXT, CONTEXT + 1):
            answer = front.post({**greedy(length, max_tokens=8), "phaseserve": WISH})
            assert answer.status_code == 400, length
            message = answer.json()["error"]["message"]
            assert str(LIMIT) in message
            assert str(length) in message
        front.wait_nothing_left()
        assert front.counted() == before
        asked.same(front.answers(asked.wished, 1))


def test_sil_3_without_a_prefill_replica(start_fleet: Any, tiny_model: Path) -> None:
    """Demanded: 503. Allowed to fall back: 200, with header and metric. Never silently."""
    with start_fleet(str(tiny_model), PAIR, transfer={"transport": "tcp"}) as front:
        body = greedy(100)
        text = front.answer({**body, "phaseserve": WISH})["choices"][0]["text"]
        front.fleet.kill("p", signal.SIGKILL)
        front.wait(lambda: set(front.views()) == {"d"})
        refused = front.post({**body, "phaseserve": WISH})
        assert refused.status_code == 503
        assert "prefill" in refused.json()["error"]["message"]
        fallbacks = front.metric("phaseserve_fallbacks_total")
        for wish in ({**WISH, "on_unavailable": "colocate"}, {"layout": "auto"}):
            answer = front.post({**body, "phaseserve": wish})
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["text"] == text
            assert answer.headers["x-phaseserve-layout"] == "colocated"
            assert "prefill" in answer.headers["x-phaseserve-fallback"]
            fallbacks += 1
            assert front.metric("phaseserve_fallbacks_total") == fallbacks
            assert front.decisions(1)[0]["plan"]["fallback"]

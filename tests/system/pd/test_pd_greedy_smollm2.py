"""Invariant 3 with real weights and real text (SmolLM2-135M, fp32): narrower than over the tiny model.

Fifty pieces of running text of 1 to 1,500 tokens over two and two replicas; each transport a few of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from contracts.phase import Role
from engine.checkpoint.resolve import resolve_model

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]

SENTENCES = (
    "The history of computing began long before the modern computer.",
    "Early devices such as the abacus helped people with arithmetic.",
    "A river carries water from the mountains to the sea, and towns grow where it can be crossed.",
    "Bread needs flour, water, salt and time.",
    "When the sun sets, the sky turns red because blue light is scattered away.",
)
LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 23, 31, 32, 33, 40, 47, 48, 49, 60, 63, 64, 65, 80, 96, 100, 111, 127, 128),
    *(129, 150, 177, 200, 222, 255, 256, 257, 300, 333, 350, 400, 420, 480, 512, 513, 600, 640, 700, 900, 1025, 1500),
)
KINDS: tuple[dict[str, Any], ...] = (
    {"logprobs": 0},
    {"logprobs": 5},
    {"temperature": 0.8, "top_p": 0.9, "seed": 4, "logprobs": 0},
    {"stop": ""},
    {"n": 2, "temperature": 0.8, "seed": 9, "logprobs": 0},
)
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
MODEL = "smollm2-135m"
POOLS = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
PATIENT = (
    *("slo.ttft_s=600", "cluster.max_pending_s=3600", "cluster.pending_deadline_s=900"),
    "router.request_deadline_s=900",
)
"""Everything is asked for at once of a few threads: nobody may be refused for that."""
PAIR = {"p0": Role.PREFILL, "d0": Role.DECODE}
WHOLE = {"admission": "sarathi(4096)", "max_chunk": 4096, "prefix_cache": False}


def requests() -> list[dict[str, Any]]:
    """Running text cut at the lengths above, each from another place."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve_model(MODEL).tokenizer_file))
    draw = random.Random(5)
    text = " ".join(f"{draw.choice(SENTENCES)} ({draw.randrange(1000)})" for _ in range(400))
    ids = tokenizer.encode(text).ids
    fields = {"temperature": 0, "ignore_eos": True, "max_tokens": 32}
    return [
        {"prompt": ids[start * 40 : start * 40 + length], **fields, **KINDS[start % len(KINDS)]}
        for start, length in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def real(start_fleet: Any, asked_of: Any) -> Iterator[Any]:
    """What one replica answers, each alone and whole."""
    with start_fleet(MODEL, {"one": Role.MIXED}, core=WHOLE, num_blocks=1024, router_settings=PATIENT) as front:
        yield asked_of(front, requests(), {"layout": "auto"})


def moved(front: Any) -> None:
    views = front.views().values()
    takers = [view for view in views if view["role"] == "decode"]
    assert {view["prompt_tokens_computed"] for view in takers} == {0}
    needed = sum(view["prefix_query_tokens"] - view["prefix_hit_tokens"] for view in takers)
    assert sum(view["kv_bytes_in"] for view in takers) >= 0.9 * needed * BYTES_PER_TOKEN
    assert needed > 0


def test_fifty_texts_over_two_and_two(start_fleet: Any, real: Any) -> None:
    core = {"admission": "sarathi(128)", "max_chunk": 128}
    with start_fleet(MODEL, POOLS, core=core, num_blocks=1024, router_settings=PATIENT) as front:
        real.same(front.answers(real.wished, 16))
        front.wait_nothing_left()
        moved(front)


@pytest.mark.parametrize(
    ("transport", "chunk", "block_size"),
    [("cma", 16, 16), ("tcp", 128, 16), ("ucx", 16, 32), ("nixl", 4096, 16)],
)
def test_some_texts_over_each_transport(
    start_fleet: Any, real: Any, transport: str, chunk: int, block_size: int
) -> None:
    core = {"admission": f"sarathi({max(64, chunk)})", "min_chunk": min(chunk, 32), "max_chunk": chunk}
    own = {"d0": {"engine": {"block_size": block_size}}}
    some = type(real)(real.bodies[::4], real.answers[::4])
    transfer = {"transport": transport}
    with start_fleet(
        MODEL, PAIR, core=core, own=own, num_blocks=1024, transfer=transfer, router_settings=PATIENT
    ) as front:
        some.same(front.answers(some.wished, 16))
        front.wait_nothing_left()
        moved(front)

"""Invariant 3 of the design over a network: a pair answers what one replica answers, token for token.

Fifty requests (prompts of 1 to 1,500 tokens; greedy, seeded, n = 2, stop strings, log probabilities, echo, penalties),
sixteen at once, against each prompt alone and whole in one replica. Not the full product of transports, chunk sizes,
layouts, prefix cache and block sizes, but a covering design: each value of each meets each value of every other in
at least one of `CASES`, which a test checks. `loopback` lives inside one process: `tests/replica/test_pd_loopback.py`.
Each case also shows that it was not faked: the KV crossed, and no decode replica computed a prompt token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

WHOLE = 4096
VALUES: tuple[tuple[Any, ...], ...] = (
    ("cma", "tcp", "tcp+tls", "ucx", "nixl"),
    (16, 128, WHOLE),
    ((1, 1), (2, 1), (1, 2), (2, 2)),
    (True, False),
    ((16, 16), (16, 32), (32, 16)),
)
OTHER_BLOCKS = ((16, 32), (32, 16))
"""nixl refuses them: see OUT-5 in `test_pd_field_bugs.py`."""


@dataclass(frozen=True)
class Case:
    """`replicas` and `blocks`: of the prefill and of the decode side."""

    transport: str
    chunk: int
    replicas: tuple[int, int]
    cache: bool
    blocks: tuple[int, int]

    def __str__(self) -> str:
        cached = "cached" if self.cache else "uncached"
        return f"{self.transport}-{self.chunk}-{self.replicas[0]}P{self.replicas[1]}D-{cached}-{self.blocks}"

    @property
    def roles(self) -> dict[str, Role]:
        givers = {f"p{number}": Role.PREFILL for number in range(self.replicas[0])}
        return givers | {f"d{number}": Role.DECODE for number in range(self.replicas[1])}

    @property
    def core(self) -> dict[str, Any]:
        fixed = {"admission": f"sarathi({max(self.chunk, 64)})", "min_chunk": min(self.chunk, 32)}
        return {**fixed, "max_chunk": self.chunk, "prefix_cache": self.cache}

    @property
    def own(self) -> dict[str, Any]:
        """Of two of a kind one alone has no room for sixteen requests, so that both are used."""
        sizes = dict(zip((Role.PREFILL, Role.DECODE), self.blocks, strict=True))
        room = {Role.PREFILL: {"max_waiting": 4}, Role.DECODE: {"max_running": 8}}
        counts = dict(zip((Role.PREFILL, Role.DECODE), self.replicas, strict=True))
        return {
            name: {"engine": {"block_size": sizes[role]}, "core": room[role] if counts[role] > 1 else {}}
            for name, role in self.roles.items()
        }


CASES = (
    Case("cma", 128, (1, 1), False, (16, 32)),
    Case("cma", 16, (2, 1), True, (32, 16)),
    Case("cma", WHOLE, (1, 2), False, (16, 16)),
    Case("cma", 128, (2, 2), True, (16, 16)),
    Case("tcp", WHOLE, (1, 1), True, (32, 16)),
    Case("tcp", 16, (2, 1), False, (16, 16)),
    Case("tcp", 16, (1, 2), True, (16, 32)),
    Case("tcp", 128, (2, 2), False, (32, 16)),
    Case("tcp+tls", 16, (1, 1), False, (16, 16)),
    Case("tcp+tls", WHOLE, (2, 1), True, (16, 32)),
    Case("tcp+tls", 128, (1, 2), True, (32, 16)),
    Case("tcp+tls", 16, (2, 2), True, (16, 32)),
    Case("ucx", 128, (1, 1), True, (16, 32)),
    Case("ucx", WHOLE, (2, 1), False, (32, 16)),
    Case("ucx", 16, (1, 2), True, (16, 16)),
    Case("ucx", WHOLE, (2, 2), False, (16, 32)),
    Case("nixl", WHOLE, (1, 1), True, (16, 16)),
    Case("nixl", 128, (2, 1), False, (16, 16)),
    Case("nixl", 16, (1, 2), True, (16, 16)),
    Case("nixl", 16, (2, 2), False, (16, 16)),
)
WHOLE_ALONE = {"admission": f"sarathi({WHOLE})", "max_chunk": WHOLE, "prefix_cache": False}
EVERYDAY = Case("tcp", 16, (1, 1), True, (16, 32))


def test_each_value_meets_each_other() -> None:
    rows = [astuple(case) for case in CASES]
    for first, second in itertools.combinations(range(len(VALUES)), 2):
        met = {(row[first], row[second]) for row in rows}
        wanted = set(itertools.product(VALUES[first], VALUES[second]))
        assert met == wanted - {("nixl", blocks) for blocks in OTHER_BLOCKS}


def transfer_of(case: Case, tls_files: Callable[[str], dict[str, str]]) -> dict[str, Any]:
    scheme, _, tls = case.transport.partition("+")
    return {"transport": scheme, **(tls_files("greedy") if tls else {})}


def compared(front: Any, case: Case, asked: Any, rounds: int) -> None:
    """Every round gives the same answers, by pairs only, over the wanted transport; nobody recomputed."""
    for number in range(rounds):
        asked.same(front.answers(asked.wished, 16))
        front.wait_nothing_left()
        decisions = front.decisions(len(asked.bodies))
        assert {decision["plan"]["layout"] for decision in decisions} == {"disaggregated"}
        assert {decision["plan"]["fallback"] for decision in decisions} == {None}
        assert {decision["outcome"]["handoff"]["transport"] for decision in decisions} == {
            case.transport.partition("+")[0]
        }
        check_moved(front, case, number)
    moved = {name: view["kv_bytes_in"] + view["kv_bytes_out"] for name, view in front.views().items()}
    assert all(moved[name] for name in case.roles), moved


def check_moved(front: Any, case: Case, number: int) -> None:
    """SIL-1, SIL-6: what was not in D's own cache crossed, and D computed nothing."""
    views = front.views()
    takers = [view for view in views.values() if view["role"] == "decode"]
    givers = [view for view in views.values() if view["role"] == "prefill"]
    assert {view["prompt_tokens_computed"] for view in takers} == {0}
    assert {view["handoffs_failed"] for view in views.values()} == {0}
    needed = sum(view["prefix_query_tokens"] - view["prefix_hit_tokens"] for view in takers)
    bytes_per_token = 2 * 2 * 2 * 16 * 4  # layers x (keys, values) x heads x head_dim x float32
    moved = sum(view["kv_bytes_in"] for view in takers)
    assert moved == sum(view["kv_bytes_out"] for view in givers)
    assert 0.9 * needed * bytes_per_token <= moved
    if case.cache:
        assert (number == 0) or sum(view["prefix_hit_tokens"] for view in takers) > 0
    else:
        asked_tokens = sum(view["prefix_query_tokens"] for view in takers)
        assert sum(view["prompt_tokens_computed"] for view in givers) == needed == asked_tokens


def run(start_fleet: Any, tiny_model: Path, tls_files: Any, case: Case, asked: Any) -> None:
    transfer = transfer_of(case, tls_files)
    with start_fleet(str(tiny_model), case.roles, core=case.core, own=case.own, transfer=transfer) as front:
        compared(front, case, asked, rounds=2 if case.cache else 1)


def test_some_requests_over_a_pair(start_fleet: Any, tiny_model: Path, some_bodies: Any, asked_of: Any) -> None:
    """The everyday part: what is compared with is a third replica of the same fleet."""
    roles = EVERYDAY.roles | {"one": Role.MIXED}
    own = EVERYDAY.own | {"one": {"core": WHOLE_ALONE}}
    transfer = {"transport": EVERYDAY.transport}
    with start_fleet(str(tiny_model), roles, core=EVERYDAY.core, own=own, transfer=transfer) as front:
        asked = asked_of(front, some_bodies, {"layout": "colocated", "on_unavailable": "fail"})
        compared(front, EVERYDAY, asked, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_tokens(start_fleet: Any, tiny_model: Path, tls_files: Any, asked: Any, case: Case) -> None:
    run(start_fleet, tiny_model, tls_files, case, asked)

"""The router bench's own arithmetic, and its tap."""

from __future__ import annotations

import pytest

from contracts import wire
from contracts.replica_io import SequenceOutput
from contracts.request import Request, SamplingParams
from experiments.router_bench.added import added_by_router, read_tap
from experiments.router_bench.streams import Seen
from experiments.router_bench.tap import Passed

TEXTS = {1: "one ", 2: "", 3: "three ", 4: "four"}


def submitted(at_s: float, name: str) -> Passed:
    request = Request(request_id=f"cmpl-{name}", prompt_token_ids=(1,), sampling=SamplingParams())
    return Passed(at_s, True, wire.encode(wire.Submit(requests=(request,))))


def produced(at_s: float, **tokens: int) -> Passed:
    outputs = tuple(SequenceOutput(request_id=f"cmpl-{name}", token_ids=(token,)) for name, token in tokens.items())
    return Passed(at_s, False, wire.encode(wire.Outputs(outputs=outputs)))


def test_what_the_router_added_is_a_difference_of_times_of_one_token() -> None:
    passed = [
        submitted(1.002, "a"),
        submitted(1.003, "b"),
        Passed(1.004, True, wire.encode(wire.Ping(nonce=1))),
        produced(1.100, a=1, b=1),
        produced(1.200, a=2),  # no text yet: the first half of a character
        produced(1.300, a=3, b=4),
    ]
    seen = [
        Seen("a", 1.000, [(1.101, "one "), (1.304, "one three ")]),
        Seen("b", 1.000, [(1.102, "one "), (1.301, "one four")]),
    ]
    added = added_by_router(seen, read_tap(passed, name_length=1), lambda ids: "".join(TEXTS[i] for i in ids))
    assert added.before_s == pytest.approx([0.002, 0.003])
    assert added.first_s == pytest.approx([0.001, 0.002])
    assert added.ttft_s == pytest.approx([0.003, 0.005])
    assert added.later_s == pytest.approx([0.004, 0.001])
    assert added.step_first_s == pytest.approx([0.001])
    assert added.step_last_s == pytest.approx([0.004])

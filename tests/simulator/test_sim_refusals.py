"""Why requests were refused is counted by reason, whatever the numbers in it, in bounded memory."""

from __future__ import annotations

from contracts.errors import ErrorInfo
from simulator.lengths import Constant, Uniform
from simulator.refusals import MOST_REASONS, Refusals
from simulator.report import Refusal
from simulator.run import simulate
from simulator.scenarios import small


def error(message: str, status: int = 400) -> ErrorInfo:
    return ErrorInfo(status=status, code="x", message=message)


def test_reasons_that_differ_in_numbers_are_one_and_the_first_is_told() -> None:
    seen, other = Refusals(), Refusals()
    for message in ("12 waiting of 12", "draining", "13 waiting of 14"):
        seen.add(error(message))
    other.add(error("99.5 waiting of 1"))
    other.add(error("draining", 503))
    other.add(None)
    seen.take(other)
    assert seen.report() == (
        Refusal(status=400, count=3, reason="12 waiting of 12"),
        Refusal(status=0, count=1, reason="no reason was given"),
        Refusal(status=400, count=1, reason="draining"),
        Refusal(status=503, count=1, reason="draining"),
    )


def test_there_are_only_so_many_reasons() -> None:
    seen = Refusals()
    for number in range(3 * MOST_REASONS):
        seen.add(error("x" * number))
    report = seen.report()
    assert len(report) == MOST_REASONS + 1
    assert report[0] == Refusal(status=400, count=2 * MOST_REASONS, reason="other reasons")


def test_a_run_tells_what_it_refused() -> None:
    lengths = {"prompt": Uniform(low=50, high=150), "output": Constant(tokens=20)}
    report = simulate(small(mixed=1, rate=8.0, duration_s=5.0, max_context=120, **lengths))  # type: ignore[arg-type]
    (refusal,) = report.refusals
    assert report.refused == {"400": refusal.count}
    assert 0 < refusal.count < report.arrived
    assert "exceed the context of 120 tokens" in refusal.reason


def test_of_what_the_links_carried_that_of_hand_offs_is_told() -> None:
    report = simulate(small(prefill=1, decode=1, rate=2.0, duration_s=5.0, prompt=Constant(tokens=256)))
    brought = {replica.replica_id: replica.kv_bytes_in for replica in report.replicas}
    assert report.handed_over > 2
    assert brought == {"prefill-0": 0, "decode-0": report.handed_over * 256 * 196_608}
    assert report.kv_bytes >= brought["decode-0"]

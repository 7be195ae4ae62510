"""The scale experiment: its cases are what they say, and what was measured once is not measured again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from experiments.scale.__main__ import CLOSING, compose
from experiments.scale.cases import CODE, beside_vidur, cost, many_replicas, many_requests
from experiments.scale.one import Case, Measured, measure
from experiments.scale.parts import NATIVE, OURS, PARTS, VIDUR, Asked
from experiments.scale.picture import decisions, draw_costs, requests
from experiments.scale.store import Job, Store
from experiments.scale.vidur_side import CHUNK_STEP, tables, write_trace
from scheduling.step_shape import StepShape
from simulator.statistics import Summary

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{second}.0000000,{100 + second},{3 + second}\n" for second in range(8)
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a short code trace."""
    (tmp_path / CODE).write_text(TRACE)
    return tmp_path


def test_a_small_case_is_run_and_measured(traces: Path) -> None:
    case = Case(kind="requests", traces=str(traces), trace=CODE, replicas=2, num_requests=30)
    found = measure(case)
    assert (found.requests, found.decision_us.count) == (30, 4)  # one in eight is timed
    assert found.output_tokens > 30
    assert found.steps > 0
    assert found.cpu_s > 0.0
    assert found.view_us.count > 0


def test_replicas_without_links_and_with_slow_views() -> None:
    scenario = many_replicas(3, 10, 0.5)
    assert (scenario.fleet[0].count, scenario.heartbeat_s, scenario.fleet[0].link_bytes_per_s) == (3, 0.5, 0.0)


def test_a_trace_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no trace"):
        many_requests(tmp_path, CODE, 2, 10)
    with pytest.raises(ConfigError, match="there is no trace"):
        beside_vidur(tmp_path, 1, 10)


def _measured(requests: int, cpu_s: float, **more: object) -> Measured:
    figures = {"wall_s": cpu_s, "peak_mb": 50.0, "events": 1000, "steps": 100, "virtual_s": 9.0} | more
    latencies = dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "e2e_mean_s", "e2e_p50_s", "e2e_p90_s"), 1.0)
    return Measured(requests=requests, cpu_s=cpu_s, **(latencies | figures))  # type: ignore[arg-type]


def _job(kind: str, requests: int, who: str = OURS, replicas: int = 8, trace: str = CODE) -> Job:
    return Job(who=who, case=Case(kind=kind, trace=trace, replicas=replicas, num_requests=requests))


def test_what_is_known_is_not_measured_again_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    asked: list[int] = []

    def once() -> Measured:
        asked.append(1)
        return _measured(4, 1.0)

    path, job = tmp_path / "results" / "scale.jsonl", _job("replicas", 4)
    Store(path).measure(job, once)
    path.write_bytes(path.read_bytes() + b'{"job":')
    store = Store(path)
    store.measure(job, once)
    assert asked == [1]
    assert [row.measured for row in store.shown("replicas")] == [_measured(4, 1.0)]
    assert path.read_bytes().endswith(b"}\n")
    path.write_text("no measurement\n")
    with pytest.raises(ConfigError, match="line 1"):
        Store(path)


def test_rows_of_older_code_are_shown_when_there_are_no_newer_and_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "scale.jsonl"
    Store(path).measure(_job("memory", 10), lambda: _measured(10, 1.0))
    row = path.read_text()
    code = re.search(r'"code":"(\w+)"', row)
    assert code
    old = row.replace(code[1], "0ld").replace('peak_mb":50', 'peak_mb":70')
    path.write_text(old)
    assert Store(path).shown("memory")[0].measured.peak_mb == 70.0
    path.write_text(old + row)
    assert [one.measured.peak_mb for one in Store(path).shown("memory")] == [50.0]
    assert [one.measured.peak_mb for one in Store(path, "0ld").shown("memory")] == [70.0]
    with pytest.raises(ConfigError, match=r"no row of version 1234.*0ld"):
        Store(path, "1234")


def test_the_document_is_made_of_what_the_store_holds_and_says_which_goals_are_met(tmp_path: Path) -> None:
    store = Store(tmp_path / "scale.jsonl")
    for who, cpu_s in ((VIDUR, 30.0), (NATIVE, 25.0), (OURS, 1.0)):
        store.measure(_job("vidur", 1000, who, 1), lambda cpu_s=cpu_s, who=who: _measured(1000, cpu_s))  # type: ignore[misc]
    store.measure(_job("requests", 5000, replicas=64), lambda: _measured(5000, 10.0, wall_s=6.0))
    store.measure(_job("memory", 1000), lambda: _measured(1000, 1.0))
    store.measure(_job("memory", 10_000), lambda: _measured(10_000, 9.0, peak_mb=90.0))
    compose(store, tmp_path, "c", ["requests: no room"])
    table, closing = (tmp_path / "RESULT.md").read_text().split(f"## {CLOSING}")
    closing = " ".join(closing.split())
    assert "| 1 | 1,000 | ours | 1 | 1000 |" in table
    assert "20 times as fast as Vidur, 1 replica: met. 25.0 times the faster" in closing
    assert "E2E mean +0.0 %" in closing
    assert "not shown. 5,000 requests took 6 s" in closing
    assert "would take 1000 s of both cores (the goal allows 600 us each)" in closing
    assert "requests served: **not met** (at most 1.5 times). 50 MB after 1,000 requests, 90 after 10,000" in closing
    assert "Part `replicas`: not run." in closing
    assert "## 5,000 requests on 64 replicas (the goal: a million)" in table
    assert "- Failed: requests: no room." in closing


def test_a_million_requests_are_judged_by_the_wall_clock(tmp_path: Path) -> None:
    store = Store(tmp_path / "scale.jsonl")
    for trace, wall_s in (("t_code.csv", 299.0), ("t_conv.csv", 301.0)):
        job = _job("requests", 1_000_000, replicas=64, trace=trace)
        store.measure(job, lambda wall_s=wall_s: _measured(1_000_000, 500.0, wall_s=wall_s))  # type: ignore[misc]
    store.measure(_job("replicas", 40, replicas=10_000), lambda: _measured(40, 1.0))
    compose(store, tmp_path, "c")
    text = " ".join((tmp_path / "RESULT.md").read_text().split())
    assert "`code`: met. 1,000,000 requests took 299 s" in text
    assert "`conv`: **not met**. 1,000,000 requests took 301 s" in text
    assert "on 10,000 replicas: not run, 40 requests were" in text


def test_the_picture_has_vidur_ours_the_goals_and_decisions_over_the_size_of_the_fleet(tmp_path: Path) -> None:
    store = Store(tmp_path / "scale.jsonl")
    for who, cpu_s in ((VIDUR, 3.0), (NATIVE, 2.0), (OURS, 1.0)):
        store.measure(_job("vidur", 1000, who, 1), lambda cpu_s=cpu_s: _measured(1000, cpu_s))  # type: ignore[misc]
    for count in (500, 100):
        job = _job("requests", count, replicas=64)
        store.measure(job, lambda count=count: _measured(count, count / 500))  # type: ignore[misc]
    for replicas, us in ((1000, 70.0), (100, 50.0)):
        known = {"decision_us": Summary(count=2, p50=us, p99=2.0 * us), "view_us": Summary(p50=5.0, p99=9.0)}
        job = _job("replicas", 10, replicas=replicas)
        store.measure(job, lambda known=known: _measured(10, 0.01, **known))  # type: ignore[misc]
    shown = {part: store.shown(part) for part in PARTS}
    assert {one.name: dict(one.points) for one in requests(shown)} == {
        VIDUR: {1: pytest.approx(3000.0)},
        NATIVE: {1: pytest.approx(2000.0)},
        "ours, as beside Vidur": {1: pytest.approx(1000.0)},
        "ours, answers of 28 tokens": {100: pytest.approx(1000.0), 1000: pytest.approx(1000.0)},
        "ours, code trace": {64: pytest.approx(2000.0)},
        "goals: a 20th of Vidur, a million in 300 s": {1: pytest.approx(100.0), 64: pytest.approx(600.0)},
    }
    assert dict(decisions(shown)[0].points) == {100: 100.0, 1000: 140.0}
    assert not draw_costs({}, tmp_path / "none.png")
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    compose(store, tmp_path, "c", stored=True)
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "RESULT.md").read_text()
    assert "](scale.png)" in text
    assert f"rows of commit {store.rows[0].commit} (measured {store.rows[0].on[:10]}), shown by" in text


def test_the_long_parts_can_be_cut_each_by_itself() -> None:
    asked = Asked(traces=Path(), requests=7, fleet_requests=50_000)
    assert {job.case.num_requests for job in PARTS["requests"](asked)} == {7}
    sizes = [(job.case.replicas, job.case.num_requests) for job in PARTS["replicas"](asked)]
    assert sizes == [(100, 20_000), (1000, 50_000), (10_000, 50_000)]
    for part, jobs in PARTS.items():
        assert {job.case.kind for job in jobs(asked)} == {part}


def test_vidur_gets_our_step_times(tmp_path: Path) -> None:
    """Its sum over layers, for a prompt's chunk and decode rows in one batch, is our formula for the middle of what it
    rounds to the entries that it looks up."""
    numbers = {name: getattr(cost(), name) for name in ("a0", "a1", "b0", "b1", "b2", "b3")}
    granularity = 65
    found = tables(numbers, layers=32, granularity=granularity, batch=16)
    chunk, seen, context = 128, 10 * granularity, 16 * granularity
    theirs = found["attn_pre_proj"][(136,)] + found["attn_prefill"][(seen, chunk)] + found["attn_decode"][(8, context)]
    middle = chunk - (CHUNK_STEP - 1) / 2
    a0, a1, b0, b1, b2, b3 = numbers.values()
    ours = (
        a0 + a1 * (middle + 8) + b0 * (seen - 32 - middle) * middle + b1 * middle**2 + b2 * 8 * (context - 32) + b3 * 8
    )
    assert 32 * theirs / 1e3 == pytest.approx(ours, rel=1e-9)
    shape = StepShape()
    shape.add_decodes(8, 8 * (context - 32))
    alone = found["attn_pre_proj"][(8,)] + found["attn_decode"][(8, context)]
    assert 32 * alone / 1e3 == pytest.approx(cost().step_s(shape), rel=1e-9)
    assert found["add"][(7,)] == 0.0
    write_trace(tmp_path / "trace.csv", [[0.5, 10, 3]])
    assert (tmp_path / "trace.csv").read_text().splitlines()[1] == "day,0.5,10,3"

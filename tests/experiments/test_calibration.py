"""What is compared with what, and what RESULT.md says of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from contracts.request import Slo
from contracts.views import StepCost
from experiments.bandwidth_sweep.seen import Seen
from experiments.calibration.compare import Cell, around, cells, point_cells, within
from experiments.calibration.live import Idle, LivePoint, Record, beside_engines, sleeping
from experiments.calibration.report import FITTED, SLEEP, TABLE, draw, write_report
from experiments.calibration.simulated import ROLES, Around, scenario, simulated, slowed
from experiments.calibration.workload import asked, write_trace
from scheduling.step_shape import StepShape
from simulator.cost import Fitted, Table
from simulator.cost_file import CostFile, read_cost_file
from simulator.drawing import missing
from simulator.traces import read_trace

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


@pytest.fixture
def cost(tmp_path: Path) -> CostFile:
    sleeping(tmp_path / "cost.json")
    return read_cost_file(tmp_path / "cost.json")


def test_the_trace_holds_the_very_requests(tmp_path: Path) -> None:
    requests = asked(4.0, 10.0, 0)
    assert requests == asked(4.0, 10.0, 0) != asked(4.0, 10.0, 1)
    write_trace(tmp_path / "trace.csv", requests)
    rows = read_trace(tmp_path / "trace.csv")
    assert [row.at_s for row in rows] == pytest.approx([one.at_s for one in requests], abs=1e-5)
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [
        (one.prompt_tokens, one.output_tokens) for one in requests
    ]


@pytest.mark.parametrize("layout", ROLES)
def test_every_request_is_simulated_in_every_layout(tmp_path: Path, cost: CostFile, layout: str) -> None:
    requests = asked(3.0, 8.0, 0)
    made = scenario(layout, requests, cost, Around(link_bytes_per_s=1e9), SLO, 0, tmp_path / "trace.csv")
    seen, busy = simulated(made, len(requests))
    assert [one.error for one in seen] == [None] * len(requests)
    assert [one.output_tokens for one in seen] == [one.output_tokens for one in requests]
    assert all(one.ttft_s is not None and one.ttft_s > 0.01 for one in seen)
    assert len(busy) == 2


def record(tmp_path: Path, cost: CostFile) -> Record:
    """Live points that are the simulator's own, a tenth slower."""
    requests = asked(3.0, 8.0, 0)
    made = scenario("mixed", requests, cost, Around(message_s=0.001), SLO, 0, tmp_path / "trace.csv")
    seen, _ = simulated(made, len(requests))
    slower = tuple(
        Seen(output_tokens=one.output_tokens, ttft_s=1.1 * (one.ttft_s or 0.0), tpot_s=1.1 * (one.tpot_s or 0.0))
        for one in seen
    )
    point = LivePoint(
        layout="mixed",
        per_s=3.0,
        requests=requests,
        seen=slower,
        link_bytes_per_s=None,
        own_cores=1.5,
        other_cores=0.5,
        beside_cores=0.2,
        learnt=(StepCost(a0=0.01, a1=0.001, b0=0.0, b1=0.0, b2=0.0, b3=0.0),),
    )
    idle = Idle(layout="mixed", ttft_s=0.030, tpot_s=0.012)
    return Record(slo=SLO, idle=(idle,), points=(point,))


def test_live_and_simulated_quantiles_are_compared_and_told(tmp_path: Path, cost: CostFile) -> None:
    live = record(tmp_path, cost)
    said: list[str] = []
    found = cells(live, cost, 1, (32, 24), tmp_path, said.append)
    assert len(found) == 6
    assert all(abs(one.error) < 0.35 for one in found)
    assert len(said) == 1
    all_kinds = {FITTED: found, TABLE: found, SLEEP: found}
    write_report(tmp_path / "RESULT.md", live, cost, all_kinds, "python -m this", 12.0)
    text = (tmp_path / "RESULT.md").read_text(encoding="utf-8")
    good, every = within(found)
    assert f"**{good} of {every} quantiles are within 10%**" in text
    assert text.count("| mixed | 3 |") == 3
    assert "Others used up to 0.5 of the 2 cores" in text
    assert "- mixed, 3/s: 202 and 13.0" in text
    if missing() is None:
        draw(tmp_path / "calibration.png", {FITTED: found, TABLE: found})
        assert (tmp_path / "calibration.png").stat().st_size < 200_000


def test_errors_have_a_sign_and_what_failed_is_left_out(tmp_path: Path, cost: CostFile) -> None:
    point = record(tmp_path, cost).points[0]
    mine = point_cells(point, [[*point.seen, Seen(error="gone", ttft_s=99.0)]])
    assert all(one.error == pytest.approx(0.0) for one in mine)
    assert Cell(layout="", per_s=1.0, figure="", share=0.5, live_s=2.0, simulated_s=1.0).error == -0.5
    nothing = Cell(layout="", per_s=1.0, figure="", share=0.5, live_s=math.nan, simulated_s=1.0)
    assert within([nothing, *mine]) == (6, 6)


def test_what_lies_between_steps_is_told_from_the_idle_fleet(tmp_path: Path, cost: CostFile) -> None:
    live = record(tmp_path, cost)
    found = around(live, cost, live.points[0], 32, 24)
    step = StepShape()
    step.add_prefill(0, 32)
    assert found.message_s == pytest.approx((0.030 - cost.cost.step_s(step)) / 2)
    assert 0.0 < found.turn_s < 0.002
    assert found.beside == pytest.approx(0.2 / 1.3)


def test_the_busiest_thread_of_each_replica_is_its_engine() -> None:
    before = {(1, 1): 5.0, (2, 2): 1.0, (2, 3): 0.5, (3, 3): 9.0}
    after = {(1, 1): 5.5, (2, 2): 4.0, (2, 3): 0.75, (3, 3): 11.0, (4, 4): 0.25}
    assert beside_engines(before, after) == pytest.approx(0.5 + 0.25 + 0.25)


@pytest.mark.parametrize("model", [Fitted(a0=1.0, a1=0.1, b2=0.01), Table(points=((1, 1.0), (9, 2.0)), context_s=0.1)])
def test_slowed_steps_are_so_many_times_as_long(model: Fitted | Table) -> None:
    step = StepShape()
    step.add_decodes(4, 100)
    step.add_prefill(10, 3)
    assert slowed(model, 1.5).step_s(step) == pytest.approx(1.5 * model.step_s(step))

"""EcoServe's evaluation: scans, closed forms and the set-ups it begins with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from experiments.ecoserve import picture
from experiments.ecoserve.capacity import carried
from experiments.ecoserve.mitosis import made, sizes_over_time
from experiments.ecoserve.parts import CELLS, goodput, hybrid
from experiments.ecoserve.scan import QUICK_STEPS, Budget, Found
from experiments.ecoserve.seen import Seen
from experiments.ecoserve.setups import DATA, setup
from experiments.ecoserve.study import Job
from experiments.ecoserve.systems import SYSTEMS, rules_of, scenario
from experiments.ecoserve.tables import change, gain
from experiments.load.document import Document
from scheduling.policies import policy
from simulator.goodput import interpolated_goodput

COSTS = ("roofline", "apart", "additive")


def _found(*points: tuple[float, float]) -> Found:
    return Found(system="one", rule="min", points=tuple((rate, share, share) for rate, share in points))


def test_goodput_lies_where_attainment_last_crosses_the_quantile() -> None:
    assert interpolated_goodput([(2.0, 1.0), (4.0, 0.95), (6.0, 0.85)], 0.9)[0] == pytest.approx(5.0)
    past_a_dip = [(2.0, 0.8), (4.0, 0.95), (6.0, 0.85)]
    assert interpolated_goodput(past_a_dip, 0.9)[0] == pytest.approx(5.0)
    assert interpolated_goodput([(2.0, 1.0), (4.0, 0.95)], 0.9) == (4.0, True)
    assert interpolated_goodput([(2.0, 0.5), (4.0, 0.1)], 0.9) == (0.0, False)
    assert interpolated_goodput([], 0.9) == (0.0, False)


def test_dips_are_reported_and_gains_are_of_goodputs() -> None:
    dipped = _found((2.0, 0.8), (4.0, 0.95), (6.0, 0.85))
    assert dipped.dips(0.9) == [2.0]
    half, none = _found((2.0, 0.95), (3.0, 0.85)), _found((2.0, 0.1))
    assert gain(dipped, half, 0.9, 1) == pytest.approx(2.0)
    assert gain(dipped, none, 0.9, 1) is None
    assert change(dipped, half, 0.9, 2) == "5 to 2.5 (-50 %)"


@pytest.mark.parametrize(("cluster", "model", "data", "replicas"), CELLS)
def test_every_set_up_fits_and_says_what_it_carries(cluster: str, model: str, data: str, replicas: int) -> None:
    one = setup(cluster, model, data, replicas)
    load, made_of = one.load, one.deployment
    assert load.prompt.most + load.output.most <= made_of.max_context
    assert load.slo == DATA[data].slo
    assert 0.1 < carried(one) / replicas < 100.0
    tighter = msgspec.structs.replace(load, slo=msgspec.structs.replace(load.slo, tpot_s=load.slo.tpot_s * 0.8))
    assert carried(one, tighter) <= carried(one)


def test_every_system_is_a_whole_policy_on_the_same_replicas() -> None:
    one = setup("L20", "codellama2-34b", "ShareGPT", 4)
    for system in SYSTEMS:
        for rule in rules_of(one, system):
            made_of = scenario(one, rule)
            assert sum(group.count for group in made_of.fleet) == 4
            assert all(group.cost == one.deployment.cost for group in made_of.fleet)
            if rule in {"min", "sarathi(512)", "ecoserve_paper"}:
                assert made_of.scheduling.admission == made_of.cluster.admission == policy(rule).name
    assert rules_of(one, "static P/D, best ratio") == ("pd:1", "pd:2", "pd:3")


def test_a_job_changes_only_what_it_names() -> None:
    one = setup("L20", "codellama2-34b", "ShareGPT", 4)
    plain, changed = (
        Job(setup=one, system="s", cv=cv, scattered=on).scenario("min") for cv, on in ((1.0, False), (2.0, True))
    )
    assert changed.cluster.macro.scattered
    assert not plain.cluster.macro.scattered
    assert msgspec.structs.replace(changed, workload=plain.workload, cluster=plain.cluster) == plain


def test_an_interrupted_run_leaves_a_truthful_table(tmp_path: Path) -> None:
    document = Document(tmp_path / "RESULT.md", "T", "c")
    document.plan("a", "part a")
    document.plan("b", "part b")
    document.section("A", "| one |")
    document.done("a")
    text = (tmp_path / "RESULT.md").read_text()
    assert "| one |" in text
    assert "## Not run\n\n- part b\n" in text
    assert [path.name for path in tmp_path.iterdir()] == ["RESULT.md"]


def test_of_a_cost_that_was_not_run_its_name_is_told(tmp_path: Path) -> None:
    document = Document(tmp_path / "RESULT.md", "T", "c")
    hybrid(document, Budget(store=tmp_path / "none.jsonl", version="v"), Seen())
    document.write()
    left_out = [line for line in (tmp_path / "RESULT.md").read_text().splitlines() if line.startswith("- ")]
    where = "What a mixed step costs (codellama2-34b on 8 replicas of L20, ShareGPT, cost"
    assert [line.startswith(f"- {where} {cost}): ") for line, cost in zip(left_out, COSTS, strict=True)] == [True] * 3


def test_the_picture_has_the_goodputs_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, object]] = []

    def keep(lines: object, **more: object) -> bytes:
        drawn.append({"lines": lines, **more})
        return b""

    monkeypatch.setattr(picture, "missing", lambda: None)
    monkeypatch.setattr(picture, "draw_attainment", keep)
    found = [
        msgspec.structs.replace(_found((2.0, 1.0), (4.0, 0.95), (6.0, 0.85)), system=f"system {number}")
        for number in range(8)
    ]
    assert picture.draw(found, "t", 1, tmp_path / "a.png")
    assert drawn[0]["goodputs"] == {f"system {number}": pytest.approx(5.0) for number in range(8)}
    assert not picture.draw([], "t", 1, tmp_path / "a.png")


@pytest.mark.slow
def test_the_quick_run_goes_on_from_its_store(tmp_path: Path) -> None:
    budget = Budget(store=tmp_path / "rows.jsonl", steps=QUICK_STEPS, refine=False, duration=0.1)
    texts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        cells = [("L20", "codellama2-34b", "LongBench", 2)]
        goodput(Document(tmp_path / name / "RESULT.md", "T", "c"), budget, Seen(), cells)
        texts.append((tmp_path / name / "RESULT.md").read_text())
    assert texts[0] == texts[1]
    assert all(system.split(" (")[0] in texts[0] for system in SYSTEMS)
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(rows) == len({line[:60] for line in rows})


@pytest.mark.slow
def test_the_twelfth_replica_splits_the_macro_instance() -> None:
    seen, report = sizes_over_time(made(15.0))
    sizes = [sorted(one) for _, one in seen]
    assert sizes[0] == [8]
    assert [6, 6] in sizes
    assert sum(sizes[-1]) == 16
    assert report.finished == report.arrived - sum(report.refused.values())

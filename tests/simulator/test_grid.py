"""Grids of runs: one row for each case whatever happens, a store that survives kills, workers that end."""

from __future__ import annotations

import io
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from contracts.errors import ConfigError
from simulator import models
from simulator.changes import Kill
from simulator.grid import Case, Row, at_rates, bounds, failed, goodputs, run_grid
from simulator.grid.case import _content, key_of
from simulator.grid.store import Header, Store
from simulator.grid.tables import as_parquet, goodput_columns
from simulator.report import Report
from simulator.roofline import Roofline
from simulator.scenario import Scaling
from simulator.scenarios import small
from simulator.traces import Trace

STRANGER = "alternating-9"
"""Might be brought by scaling, and is not."""


def cases(count: int = 3, **settings: float) -> list[Case]:
    rates = [2.0 + number for number in range(count)]
    return at_rates({"layout": "phased"}, small(alternating=1, duration_s=3.0, **settings), rates)  # type: ignore[arg-type]


def wrong() -> Case:
    """It fails when it runs, not when it is built."""
    scenario = msgspec.structs.replace(small(alternating=1, duration_s=2.0), scaling=Scaling(most=2))
    return Case({"rate": 9.0}, msgspec.structs.replace(scenario, changes=(Kill(at_s=1.0, replica_id=STRANGER),)))


def plain(rows: list[Row]) -> list[Row]:
    return [msgspec.structs.replace(row, wall_s=0.0) for row in rows]


def events(report: Report) -> dict[str, int]:
    return {"twice": 2 * report.events}


def test_rows_come_in_order_with_labels_and_figures() -> None:
    rows = run_grid(cases(), progress=False, workers=1, extra=events)
    assert [row["rate"] for row in rows] == [2.0, 3.0, 4.0]
    for row in rows:
        assert row["layout"] == "phased"
        assert row.number("usual.ttft_s.p90") > 0.0
        assert row["twice"] == 2 * row.number("events")
        assert (row["refused"], row["num_replicas"]) == (0, 1)
    with pytest.raises(TypeError, match="layout"):
        rows[0].number("layout")


def test_worker_processes_give_the_rows_that_one_gives() -> None:
    assert plain(run_grid(cases(4), progress=False, workers=2)) == plain(run_grid(cases(4), progress=False, workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_case_that_fails_is_a_row_and_the_rest_goes_on(workers: int, tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    rows = run_grid([wrong(), *cases(2)], store, workers, progress=False)
    assert [bool(row.error) for row in rows] == [True, False, False]
    assert STRANGER in failed(rows)[0].error
    before = store.read_bytes().count(b"\n")
    assert plain(run_grid([wrong(), *cases(2)], store, workers, progress=False)) == plain(rows)
    assert store.read_bytes().count(b"\n") == before + 1, "what failed is tried again, nothing else is"


def test_a_torn_line_is_dropped_and_its_case_runs_again(tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    rows = run_grid(cases(), store, 1, progress=False)
    whole = store.read_bytes()
    for cut in (3, len(whole) // 2, len(whole) - 1):
        store.write_bytes(whole[:cut])
        assert plain(run_grid(cases(), store, 1, progress=False)) == plain(rows)
    lines = whole.splitlines(keepends=True)
    store.write_bytes(b"".join([lines[0], b"{]\n", *lines[1:]]))
    with pytest.raises(ConfigError, match="line 2"):
        run_grid(cases(), store, 1, progress=False)


@pytest.mark.parametrize(
    "text", ["notes", "notes\nand more", '{"grid":"a","code":"b"}\n{"key', "", '{"gr', '{"grid":"a"']
)
def test_what_is_not_a_store_of_this_grid_keeps_every_byte(text: str, tmp_path: Path) -> None:
    path, header = tmp_path / "rows.jsonl", Header(grid="g", code="c")
    path.write_text(text)
    if text == "" or (text.startswith('{"gr') and "\n" not in text):  # torn as it was begun
        Store(path, header, mixing=False).close()
        assert path.read_bytes() == msgspec.json.encode(header) + b"\n"
    else:
        with pytest.raises(ConfigError):
            Store(path, header, mixing=False)
        assert path.read_text() == text


def test_another_grid_is_refused_unless_told(tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    run_grid(cases(1), store, 1, progress=False, mixing=False)
    with pytest.raises(ConfigError, match="another grid"):
        run_grid(cases(2), store, 1, progress=False, mixing=False)
    assert len(run_grid(cases(2), store, 1, progress=False)) == 2


def test_a_store_has_one_writer_and_a_grid_has_cases(tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    told: list[str] = []

    def again(report: Report) -> dict[str, int]:
        with pytest.raises(ConfigError, match="another process") as caught:
            run_grid(cases(1), store, 1, progress=False)
        told.append(str(caught.value))
        return {}

    run_grid(cases(1), store, 1, progress=False, extra=again)
    assert told
    with pytest.raises(ConfigError, match="no case"):
        run_grid([], store)
    with pytest.raises(ConfigError, match="workers"):
        run_grid(cases(1), store, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        run_grid(cases(1), tmp_path / "file" / "rows.jsonl", 1)


def test_a_row_is_of_what_is_in_the_files_that_its_scenario_names(tmp_path: Path) -> None:
    model, trace = tmp_path / "model.toml", tmp_path / "trace.csv"
    model.write_bytes((Path(models.__file__).parent / "model_files" / "qwen3-8b.toml").read_bytes())
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,9,2\n")

    def key() -> str:
        cost = Roofline(model=str(model), hardware="l20")
        scenario = small(alternating=1, cost=cost)
        workload = msgspec.structs.replace(scenario.workload, trace=Trace(path=str(trace)))
        return key_of(msgspec.structs.replace(scenario, workload=workload), None, "code")

    first = key()
    assert key() == first
    model.write_text(model.read_text().replace("4096", "2048"))
    second = key()
    trace.write_text(trace.read_text().replace("9,2", "8,2"))
    _content.cache_clear()
    assert len({first, second, key()}) == 3


def test_whole_numbers_that_parquet_has_no_room_for_are_text() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(as_parquet({"seed": [1, 2**70], "small": [1, -(2**63)]})))
    assert table.to_pydict() == {"seed": ["1", str(2**70)], "small": [1, -(2**63)]}


def test_goodput_of_rows_is_that_of_a_scan() -> None:
    rows = [
        Row(key="", labels={"layout": name, "rate": rate, "seed": seed},
            figures={"usual.attained": attained, "ecoserve.attained": attained - 0.05})
        for name, seen in {"a": [1.0, 0.8, 0.96, 0.5], "b": [0.2] * 4}.items()
        for rate, attained in enumerate(seen, 1)
        for seed in (1, 2)
    ]  # fmt: skip
    found = goodputs(rows, by=("layout",))
    assert (found["a",].goodput, found["a",].dips, found["a",].goodput_ecoserve) == (3, (2,), 3)
    assert found["b",].goodput == 0.0
    assert [bounds(one) for one in found.values()] == [(False, False), (False, False)]
    scan = goodputs([row for row in rows if row.number("rate") < 4], by=("layout",))
    assert [bounds(one) for one in scan.values()] == [(True, True), (False, False)]
    assert goodput_columns(("layout",), scan)["goodput_is_bound"] == [True, False]


def test_a_worker_that_dies_or_hangs_costs_its_own_case() -> None:
    rows = run_grid(cases(3), None, 2, progress=False, extra=dies_at_three)
    assert [row.error for row in rows] == ["", "the worker process ended (signal 9)", ""]
    rows = run_grid(cases(2), None, 2, progress=False, extra=hangs, limit_s=0.5)
    assert [row.error for row in rows] == ["given up after 0.5 s of computing"] * 2


def dies_at_three(report: Report) -> dict[str, int]:
    if report.arrived == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hangs(report: Report) -> dict[str, int]:
    time.sleep(600.0)
    return {}

"""The sweep's own arithmetic: figures of a point, where layouts cross, what is predicted, what is kept on disk."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.request import Slo
from contracts.views import StepCost
from experiments.bandwidth_sweep.arguments import options_of, parser
from experiments.bandwidth_sweep.crossover import (
    crossing,
    judge,
    level_without_handoff,
    position,
    predicted_attainment,
    predicted_crossover,
)
from experiments.bandwidth_sweep.fleets import groups
from experiments.bandwidth_sweep.options import Options, Workload, log_spaced
from experiments.bandwidth_sweep.plot import draw, panels
from experiments.bandwidth_sweep.progress import Progress
from experiments.bandwidth_sweep.seen import Point, Seen, seen_of
from experiments.bandwidth_sweep.store import Store, as_csv, write_whole
from experiments.bandwidth_sweep.summary import percentiles, summarize
from experiments.bandwidth_sweep.table import table, verdict_text
from experiments.bandwidth_sweep.workload import Arrival, arrivals, prompt_ids
from experiments.network.lan import FRAME_SHARE

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
COST = StepCost(a0=0.0, a1=0.001, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
LAYOUT = KVLayout(num_layers=10, num_kv_heads=1, head_dim=64, block_size=16, dtype="float32")
WORKLOAD = Workload(requests=10, per_s=5.0, prompt_tokens=(100, 200), output_tokens=(2, 8))
OPTIONS = Options(
    engine="fake",
    mbit_per_s=(10.0, 100.0, 1000.0),
    modes=("colocated", "phased", "disaggregated", "auto"),
    workload=WORKLOAD,
    slo=SLO,
)
GOOD = Seen(layout="colocated", output_tokens=11, ttft_s=0.2, switch_wait_s=0.1, tpot_s=0.05)


def point(mode: str, rate: float, met: int, of: int = 10, **fields: Any) -> Point:
    """`met` of `of` requests in time."""
    good = msgspec.structs.replace(GOOD, **fields)
    late = msgspec.structs.replace(good, ttft_s=5.0)
    return Point(
        mode=mode,
        mbit_per_s=rate,
        seen=(good,) * met + (late,) * (of - met),
        span_s=2.0,
        wire_bytes=1000,
        link_bytes_per_s=None,
        cost=COST,
    )


def whole_sweep(pools: tuple[int, ...], auto: tuple[int, ...], handed: tuple[bool, ...]) -> list[Any]:
    points = []
    for rate, met, chosen, over in zip(OPTIONS.mbit_per_s, pools, auto, handed, strict=True):
        layout = "disaggregated" if over else "colocated"
        points += [point("colocated", rate, 8), point("phased", rate, 6)]
        points += [
            point("disaggregated", rate, met, layout="disaggregated"),
            point("auto", rate, chosen, layout=layout),
        ]
    return [summarize(one, SLO) for one in points]


def test_a_request_is_judged_on_both_clocks() -> None:
    stalled = Seen(layout="disaggregated", output_tokens=11, ttft_s=0.5, switch_wait_s=0.9, tpot_s=0.12)
    assert stalled.ready_s == pytest.approx(1.4)
    assert stalled.decode_tpot_s == pytest.approx(0.03)
    quick = msgspec.structs.replace(stalled, switch_wait_s=0.4, tpot_s=0.12)  # late only if the wait counts as decoding
    seen = (GOOD, stalled, quick, Seen(error="429"))
    summary = summarize(msgspec.structs.replace(point("auto", 10.0, 1), seen=seen), SLO)
    assert (summary.attained, summary.attained_end_to_end, summary.answered) == (0.5, 0.25, 3)
    assert summary.goodput_per_s == 1.0
    assert summary.handed_over == 0.5
    assert summary.ttft.p50 == 0.5
    assert math.isinf(summary.ttft.p99), "a request that was not answered is no quick one"


def test_hidden_shares_and_bytes_are_those_of_the_hand_offs() -> None:
    times = {"transfer_s": 2.0, "exposed_s": 0.5, "planned_transfer_s": 1.0, "planned_exposed_s": 0.5}
    handed = msgspec.structs.replace(GOOD, layout="disaggregated", kv_bytes=100, **times)
    queued = msgspec.structs.replace(handed, exposed_s=3.0)  # waited for others too: that is no transfer of its own
    summary = summarize(msgspec.structs.replace(point("auto", 10.0, 1), seen=(GOOD, handed, queued)), SLO)
    assert summary.kv_bytes == 200
    assert summary.hidden_share == pytest.approx(1.0 - 2.5 / 4.0)
    assert summary.planned_hidden_share == 0.5
    assert (summary.exposed_s, summary.planned_exposed_s) == (1.75, 0.5)
    assert summarize(point("phased", 10.0, 1), SLO).hidden_share is None


def test_percentiles_are_values_that_occurred() -> None:
    found = percentiles([float(i) for i in range(1, 101)])
    assert (found.p50, found.p90, found.p99) == (50.0, 90.0, 99.0)
    assert percentiles([3.0]).p99 == 3.0
    with pytest.raises(ValueError, match="no values"):
        percentiles([])


def test_lines_cross_between_two_rates_of_the_sweep() -> None:
    rates = (10.0, 100.0, 1000.0)
    assert crossing(rates, (-1.0, 1.0, 1.0)) == pytest.approx(10.0 * 10.0**0.5)
    assert crossing(rates, (-1.0, 0.5, -0.5)) is None
    assert crossing(rates, (0.5, -0.5, 0.5)) == pytest.approx(100.0 * 10.0**0.5), "from there on for good"
    assert crossing(rates, (0.0, 0.5, 0.5)) is None
    assert crossing((), ()) is None
    assert position(rates, 10.0) == 0.0
    assert position(rates, 1000.0**0.5 * 10.0**0.5) == pytest.approx(1.0)
    assert position(rates, 1000.0) == 2.0


def test_auto_that_takes_the_better_side_holds_both_criteria() -> None:
    verdict = judge(whole_sweep((0, 10, 10), (8, 10, 10), (False, True, True)), predicted=40.0)
    assert verdict.crossover is not None
    assert 10.0 < verdict.crossover < 100.0
    assert verdict.switch == pytest.approx(10.0 * 10.0**0.5)
    assert (verdict.auto_holds, verdict.switch_holds) == (True, True)
    text = verdict_text(verdict, OPTIONS)
    assert text.count("MET") == 2
    assert "NOT" not in text


def test_auto_that_hands_over_too_early_or_late_is_told_so() -> None:
    verdict = judge(whole_sweep((0, 4, 10), (0, 4, 10), (True, True, True)), predicted=None)
    assert (verdict.worst_auto, verdict.worst_at, verdict.auto_holds) == (0.0, 10.0, False)
    assert verdict.switch is None
    assert "NOT MET" in verdict_text(verdict, OPTIONS)
    assert "NOT SHOWN" in verdict_text(verdict, OPTIONS)
    late = judge(whole_sweep((9, 10, 10), (8, 8, 10), (False, False, True)), predicted=None)
    assert late.crossover is None, "worth while from the first rate on"
    assert late.auto_holds is False


def test_a_sweep_without_some_layouts_can_be_judged() -> None:
    only = [summarize(point("disaggregated", 10.0, 5), SLO)]
    verdict = judge(only, None)
    assert (verdict.crossover, verdict.worst_auto, verdict.auto_holds) == (None, None, None)
    assert level_without_handoff(only) is None


def one(at_s: float, tokens: int) -> Arrival:
    return Arrival(at_s=at_s, prompt_tokens=tokens, output_tokens=2)


def test_predicted_attainment_follows_the_formula_of_a_layerwise_transfer() -> None:
    """160 tokens: 0.16 s of prefill and 819,200 bytes in 10 layers. With a rate at which a layer takes `x` to send and
    0.016 s to compute, x + 9 * max(0, x - 0.016) is exposed."""
    num_bytes = 160 * LAYOUT.bytes_per_token
    for layer_s, exposed_s in ((0.008, 0.008), (0.032, 0.032 + 9 * 0.016)):
        mbit = num_bytes / 10 / layer_s * 8e-6 / FRAME_SHARE
        for slack, met in ((1e-6, 1.0), (-1e-6, 0.0)):
            slo = Slo(ttft_s=0.16 + exposed_s + slack, tpot_s=1.0)
            assert predicted_attainment([one(0.0, 160)], COST, LAYOUT, slo, givers=1, mbit_per_s=mbit, chunk=512) == met


def test_hand_offs_wait_for_those_before_them() -> None:
    asked = [one(0.0, 160), one(0.0, 160)]
    mbit = 160 * LAYOUT.bytes_per_token * 8e-6 / FRAME_SHARE  # one transfer takes a second
    slo = Slo(ttft_s=1.2, tpot_s=1.0)
    assert predicted_attainment(asked, COST, LAYOUT, slo, givers=1, mbit_per_s=mbit, chunk=512) == 0.5
    assert predicted_attainment(asked, COST, LAYOUT, slo, givers=2, mbit_per_s=mbit, chunk=512) == 1.0


def test_the_predicted_crossover_is_the_lowest_rate_that_attains_the_level() -> None:
    asked = arrivals(WORKLOAD)

    def attains(rate: float) -> float:
        return predicted_attainment(asked, COST, LAYOUT, SLO, givers=1, mbit_per_s=rate, chunk=512)

    found = predicted_crossover(asked, COST, LAYOUT, SLO, givers=1, level=0.9, rates=OPTIONS.mbit_per_s)
    assert found is not None
    assert attains(found * 1.01) >= 0.88 > attains(found * 0.99)
    hopeless = Slo(ttft_s=0.05, tpot_s=1.0)
    assert predicted_crossover(asked, COST, LAYOUT, hopeless, givers=1, level=0.9, rates=(1.0,)) is None
    assert predicted_crossover(asked, COST, LAYOUT, SLO, givers=1, level=0.0, rates=(1.0,)) is None


def test_arrivals_are_the_same_for_every_point_and_prompts_never() -> None:
    asked = arrivals(WORKLOAD)
    assert asked == arrivals(WORKLOAD) != arrivals(msgspec.structs.replace(WORKLOAD, seed=2))
    assert len(asked) == 10
    assert all(100 <= each.prompt_tokens <= 200 and 2 <= each.output_tokens <= 8 for each in asked)
    assert prompt_ids(16, "a")[:4] != prompt_ids(16, "b")[:4]


def test_options_say_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        msgspec.structs.replace(OPTIONS, replicas=3)
    with pytest.raises(ConfigError, match="layouts"):
        msgspec.structs.replace(OPTIONS, modes=("disagregated",))
    with pytest.raises(ConfigError, match="output_tokens"):
        Workload(requests=1, per_s=1.0, prompt_tokens=(1, 1), output_tokens=(1, 4))
    with pytest.raises(ConfigError, match="COUNT"):
        log_spaced(10.0, 10.0, 3)
    assert log_spaced(10.0, 1000.0, 3) == (10.0, 100.0, 1000.0)


def test_the_command_line_overrides_a_preset() -> None:
    words = parser("sweep", "").parse_args(["--rates", "5:50:2", "--requests", "7", "--layouts", "auto, phased"])
    options = options_of(words)
    assert options.mbit_per_s == (5.0, 50.0)
    assert (options.workload.requests, options.modes) == (7, ("auto", "phased"))
    assert [modes for _, modes in groups(options)] == [("phased",), ("auto",)]
    usual = options_of(parser("sweep", "").parse_args([]))
    assert len(usual.mbit_per_s) >= 8
    assert [len(roles) for roles, _ in groups(usual)] == [2, 2, 2], "the same number of replicas in every layout"


def test_points_are_kept_and_never_mixed_with_those_of_another_sweep(tmp_path: Path) -> None:
    store = Store(tmp_path / "new", OPTIONS)
    assert not store.has("phased", 10.0)
    store.add(point("phased", 10.0, 3))
    store.add(point("auto", 10.0, 4))
    again = Store(tmp_path / "new", OPTIONS)
    assert again.points == store.points
    assert again.has("phased", 10.0)
    assert not again.has("phased", 100.0)
    with pytest.raises(ConfigError, match="other options"):
        Store(tmp_path / "new", msgspec.structs.replace(OPTIONS, grace_s=9.0))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["points.jsonl"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one")
    write_whole(tmp_path / "a", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"two")]


def test_csv_table_and_panels_show_every_point() -> None:
    summaries = whole_sweep((0, 10, 10), (8, 10, 10), (False, True, True))
    rows = list(csv.DictReader(io.StringIO(as_csv(summaries))))
    assert len(rows) == len(summaries)
    assert rows[0]["mode"] == "colocated"
    assert float(rows[0]["ttft_p50_s"]) == pytest.approx(0.2)
    assert rows[0]["hidden_share"] == ""
    text = table(summaries, OPTIONS)
    assert sum("colocated" in line for line in text.splitlines()) == 3
    attainment, ready, *_ = panels(summaries, OPTIONS)
    assert [line.name for line in attainment.lines] == list(OPTIONS.modes)
    assert attainment.lines[2].points == ((10.0, 0.0), (100.0, 100.0), (1000.0, 100.0))
    assert ready.target == 1000.0


def test_the_picture_is_a_png() -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    summaries = whole_sweep((0, 10, 10), (8, 10, 10), (False, True, True))
    lost = summarize(point("auto", 1000.0, 10, error="429"), SLO)  # a point without a finite value
    content = draw([*summaries[:-1], lost], judge(summaries, 40.0), OPTIONS)
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


def test_a_line_of_decisions_becomes_what_was_seen() -> None:
    prediction = {"ttft_s": 0.1, "switch_wait_s": 0.02, "tpot_s": 0.01, "transfer_s": 0.3, "exposed_s": 0.02}
    plan = {"layout": "disaggregated", "replica_id": "d0", "prediction": prediction, "reason": "why"}
    handoff = {"num_bytes": 9, "transfer_s": 0.4, "exposed_s": 0.1, "transport": "tcp", "prefill_replica_id": "p0",
               "hidden_share": 0.75}  # fmt: skip
    outcome = {"ttft_s": 0.2, "switch_wait_s": 0.1, "tpot_s": 0.03, "output_tokens": 5, "finish": "length"}
    shown = {"request_id": "r", "at_s": 1.0, "prompt_tokens": 9, "pending_s": 0.0, "plan": plan,
             "outcome": {**outcome, "handoff": handoff}}  # fmt: skip
    seen = seen_of(shown, None)
    assert (seen.layout, seen.error, seen.fallback) == ("disaggregated", None, False)
    assert (seen.exposed_s, seen.planned_exposed_s, seen.kv_bytes) == (0.1, 0.02, 9)
    assert seen_of({**shown, "outcome": None, "refusal": "504 late"}, None).error == "504 late"
    assert seen_of(None, None).error == "the router kept no decision"
    assert seen_of(None, "429").error == "429"


def test_progress_tells_where_it_is_and_how_long_it_takes() -> None:
    lines: list[str] = []
    progress = Progress(2, lines.append)
    progress.next("auto", 10.0)
    progress.done()
    progress.next("auto", 100.0)
    progress.done()
    progress.end()
    assert lines[0].startswith("[ 1/2] auto at 10 Mbit/s, time left not known")
    assert "about 0 min" in lines[1]
    assert lines[2].startswith("2 points in")

"""The crossover experiment: what closed forms say, where simulated pools overtake, what RESULT.md tells of both."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from experiments.crossover.formula import FASTEST, best_pools, crossover, forecast, rates_at
from experiments.crossover.loads import LOADS, Load
from experiments.crossover.report import write_csv, write_result
from experiments.crossover.simulated import PICKS, Found, crossing
from experiments.crossover.sites import Place, place
from simulator.links import BYTES_PER_GBIT

PICK = PICKS[0]


@pytest.fixture(scope="module")
def there() -> Place:
    return place(PICK.model, PICK.hardware)


@pytest.fixture
def load() -> Load:
    return next(load for load in LOADS if load.name == PICK.load)


def test_pools_carry_as_much_from_the_crossover_on_and_less_below(there: Place, load: Load) -> None:
    deployment = there.deployment
    assert deployment is not None
    demand = load.within(deployment.max_context).demand
    at = crossover(deployment, demand, 4, 10.0)
    assert at is not None
    assert best_pools(4, rates_at(deployment, demand, at))[0] >= 10.0
    assert best_pools(4, rates_at(deployment, demand, 0.99 * at))[0] < 10.0
    most = best_pools(4, rates_at(deployment, demand, FASTEST))[0]
    assert crossover(deployment, demand, 4, 1.01 * most) is None
    assert crossover(deployment, demand, 4, 0.0) == 0.0


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_demand_has_the_mean_of_what_is_drawn(load: Load) -> None:
    """Lengths are cut at what a context of 2048 tokens has room for, and the mean with them."""
    cut, chance = load.within(2048), random.Random(1)
    assert cut.prompt.most + cut.output.most <= 2048
    for lengths, mean in ((cut.prompt, cut.demand.prompt_tokens), (cut.output, cut.demand.output_tokens)):
        assert statistics.fmean(lengths.draw(chance) for _ in range(20_000)) == pytest.approx(mean, rel=0.04)


def test_a_model_that_no_node_holds_says_why() -> None:
    lost = place("deepseek-v3", "l20")
    assert lost.deployment is None
    assert lost.why_not
    assert place("llama-3-8b", "h100").tp == 1
    assert place("qwen2-72b", "h100").tp == 4, "as published"


def _found(layout: str, link: float | None, goodput: float) -> Found:
    return Found(pick=PICK, layout=layout, link_gbit=link, mix="m", predicted=1.0, goodput=goodput, usual=goodput)


def _rows(*goodputs: float) -> list[Found]:
    pools = [_found("disaggregated", link, one) for link, one in zip(PICK.links, goodputs, strict=True)]
    return [_found("colocated", None, 5.0), _found("phased", None, 4.0), *pools]


@pytest.mark.parametrize(
    ("goodputs", "over"),
    [((1.0, 3.0, 6.0, 6.0), (1.5, 5.0)), ((6.0, 6.0, 6.0, 6.0), (0.0, 0.5)), ((1.0, 2.0, 3.0, 4.0), None)],
)
def test_pools_take_over_between_two_links(goodputs: tuple[float, ...], over: tuple[float, float] | None) -> None:
    assert crossing(_rows(*goodputs), "colocated") == over


def test_the_document_counts_where_formula_and_simulator_agree(tmp_path: Path, there: Place, load: Load) -> None:
    every = {one.name: forecast(there, one, 4) for one in LOADS}
    for rate in (every[load.name].over_mixed, every[load.name].over_alternating):
        assert rate is not None
        assert 1.5 < rate / BYTES_PER_GBIT < 5.0
    write_csv(tmp_path / "predicted.csv", list(every.values()))
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 1 + len(LOADS)
    places = [there, place("deepseek-v3", "l20")]
    for goodputs, says in (
        ((1.0, 3.0, 6.0, 6.0), "in 2 of 2 cases; not: none."),
        ((1.0, 4.5, 6.0, 6.0), "in 1 of 2 cases; not: codellama2-34b on l20 (ShareGPT tight) over phased."),
    ):
        write_result(tmp_path / "RESULT.md", places, list(every.values()), _rows(*goodputs), 4, 1, len(PICKS))
        text = (tmp_path / "RESULT.md").read_text()
        assert f"The formula lies within the simulated interval {says}" in text
        assert "Held by no node: deepseek-v3 on l20." in text
        assert f"1 of {len(PICKS)} picks done" in text

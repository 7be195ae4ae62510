"""Runs in shards: every request once, the report that of all of them, whatever the processes."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from contracts.errors import ConfigError
from simulator.changes import Drain
from simulator.lengths import Constant
from simulator.run import simulate
from simulator.scenario import Scaling, Scenario
from simulator.scenarios import small
from simulator.sharded import merged, run_shard, shard_of, simulate_sharded
from simulator.statistics import EXACT, Sketch
from simulator.workload import draw


def scenario(**wanted: object) -> Scenario:
    lengths = {"prompt": Constant(tokens=100), "output": Constant(tokens=12)}
    return small(**{"mixed": 4, "rate": 20.0, "num_requests": 120, **lengths, **wanted})  # type: ignore[arg-type]


def test_each_request_comes_to_one_shard_at_its_own_time() -> None:
    whole = scenario()
    arrivals = {a.number: a for a in draw(whole.workload, Random(3))}
    parts = [list(draw(shard_of(whole, index, 3).workload, Random(3))) for index in range(3)]
    assert sorted(a.number for part in parts for a in part) == sorted(arrivals)
    assert all(arrivals[a.number] == a for part in parts for a in part)
    assert min(len(part) for part in parts) > 120 / 3 / 2


def test_the_report_is_that_of_all_requests_and_replicas() -> None:
    report = simulate_sharded(scenario(), 2, workers=1)
    parts = [simulate(shard_of(scenario(), index, 2)) for index in range(2)]
    assert (report.arrived, report.finished) == (120, 120)
    assert report.usual.ttft_s.count == 120
    assert report.itl_s.count == 120 * 11
    assert len({replica.replica_id for replica in report.replicas}) == 4
    assert report.events == sum(part.events for part in parts)
    assert report.usual.ttft_s.most == max(part.usual.ttft_s.most for part in parts)
    assert report.usual.attained == pytest.approx(sum(part.usual.attained * part.arrived for part in parts) / 120)
    assert sum(window.arrived for window in report.windows) == 120
    assert report.rate == pytest.approx(simulate(scenario()).rate)
    counted_s = max(part.duration_s for part in parts) - scenario().start_s
    assert report.throughput * counted_s == pytest.approx(120)
    assert report.output_tokens_per_s * counted_s == pytest.approx(120 * 12)
    assert report.attained_per_s * counted_s == pytest.approx(120 * report.usual.attained)
    assert merged([run_shard(scenario())]).json() == simulate(scenario()).json()


@pytest.mark.slow
def test_processes_make_no_difference() -> None:
    assert simulate_sharded(scenario(), 2).json() == simulate_sharded(scenario(), 2, workers=1).json()


@pytest.mark.parametrize(
    ("what", "shards"),
    [
        (scenario(mixed=1), 2),
        (msgspec.structs.replace(scenario(), changes=(Drain(at_s=1.0, replica_id="mixed-0"),)), 2),
        (msgspec.structs.replace(scenario(), scaling=Scaling(most=5)), 2),
    ],
)
def test_what_cannot_be_divided_is_refused(what: Scenario, shards: int) -> None:
    with pytest.raises(ConfigError, match=r"shard|cannot be shared"):
        simulate_sharded(what, shards)


@pytest.mark.parametrize(("first", "second"), [(10, 20), (EXACT - 5, 100), (EXACT + 5, 3), (EXACT + 1, EXACT + 2)])
def test_two_sketches_together_are_one_of_all_values(first: int, second: int) -> None:
    random = Random(first)
    values = [random.expovariate(1.0) for _ in range(first + second)]
    one, other, whole = Sketch(), Sketch(), Sketch()
    for value in values[:first]:
        one.add(value)
    for value in values[first:]:
        other.add(value)
    for value in values:
        whole.add(value)
    one.take(other)
    assert one.summary() == whole.summary()

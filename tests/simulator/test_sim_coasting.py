"""Stretches of steps that are run in one go: nobody can tell, to the last byte of the report."""

from __future__ import annotations

import msgspec
import pytest

from contracts.phase import Role
from scheduling.config import ReplicaCoreConfig
from simulator import coast
from simulator.changes import Change, Drain, Freeze, Kill, RestartRouter, SetLink, SetRoleTo
from simulator.lengths import LogNormal
from simulator.report import Report
from simulator.run import Run, simulate
from simulator.scenario import Scenario
from simulator.scenarios import small, under

LENGTHS = {"prompt": LogNormal(mean=250.0, median=150.0, most=1000), "output": LogNormal(mean=60.0, median=40.0)}


def scenario(*changes: Change, **wanted: object) -> Scenario:
    """Six replicas of all kinds for eight seconds."""
    roles = {"alternating": 2, "mixed": 1, "prefill": 1, "decode": 2}
    plain = small(**{**roles, "rate": 10.0, "duration_s": 8.0, **LENGTHS, **wanted})  # type: ignore[arg-type]
    return msgspec.structs.replace(plain, changes=changes)


def both(monkeypatch: pytest.MonkeyPatch, what: Scenario) -> tuple[Report, Report]:
    """The report with stretches and without."""
    usual = simulate(what)
    monkeypatch.setattr(coast, "MOST", 0)
    return usual, simulate(what)


CHANGES: list[Change] = [
    Kill(at_s=4.0, replica_id="decode-1", restart_s=1.0),
    Kill(at_s=4.013, replica_id="mixed-0"),
    Freeze(at_s=3.0, replica_id="alternating-0", for_s=4.0),
    Freeze(at_s=4.02, replica_id="decode-0", for_s=0.5),
    Drain(at_s=4.0, replica_id="alternating-1"),
    SetRoleTo(at_s=4.0, replica_id="decode-1", role=Role.MIXED),
    SetLink(at_s=4.0, bytes_per_s=2e7),
    RestartRouter(at_s=4.0, restart_s=0.5),
    RestartRouter(at_s=4.966, restart_s=0.5),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'replica_id', '')}")
def test_whatever_happens_beside_them(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    with_stretches, without = both(monkeypatch, scenario(change, noise=0.1))
    assert with_stretches.json() == without.json()


@pytest.mark.parametrize(
    "what",
    [
        scenario(noise=0.0),
        scenario(scheduling=ReplicaCoreConfig(prefix_cache=True)),
        scenario(num_blocks=250, rate=20.0),
        scenario(max_tokens=32),
        msgspec.structs.replace(scenario(), heartbeat_s=0.03),
        under(scenario(duration_s=5.0), "sarathi(256)"),
        under(scenario(duration_s=5.0), "ecoserve_artifact"),
    ],
    ids=["no-noise", "prefix-cache", "few-blocks", "cut-by-length", "slow-steps", "sarathi", "ecoserve"],
)
def test_under_any_settings(monkeypatch: pytest.MonkeyPatch, what: Scenario) -> None:
    with_stretches, without = both(monkeypatch, what)
    assert with_stretches.json() == without.json()


def test_most_steps_of_a_lightly_loaded_fleet_are_run_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this file compares a thing with itself."""
    run = Run(scenario())
    handled = 0
    for place in run.fleet.places.values():
        core_handle = place.body.core.handle

        def counting(event: object, now: float, core_handle: object = core_handle) -> object:
            nonlocal handled
            handled += type(event).__name__ == "StepDone"
            return core_handle(event, now)  # type: ignore[operator]

        monkeypatch.setattr(place.body.core, "handle", counting)
    report = run.finish()
    steps = sum(replica.steps for replica in report.replicas)
    assert 0 < handled < steps / 2

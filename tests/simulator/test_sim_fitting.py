"""Cost models out of measured steps, the file they are kept in, and cores that replicas share."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from contracts.errors import ConfigError
from contracts.phase import Role
from scheduling.step_shape import StepShape
from simulator.clock import Clock
from simulator.cost import Fitted, NoisySteps, Table
from simulator.cost_file import CostFile, Measured, encoded, read_cost_file
from simulator.fitting import Residuals, fit, residuals, tabulate
from simulator.run import simulate
from simulator.scenario import Group
from simulator.scenarios import small
from simulator.shared_cores import CrowdedSteps, SharedCores

TRUTH = Fitted(a0=0.01, a1=4e-4, b0=2e-7, b1=1e-7, b2=1e-6, b3=8e-4)
EXACT = Residuals(mape=0.0, p95=0.0, noise=0.0, points=1)


def shapes() -> list[StepShape]:
    """Chunks, decode rows and both, of many sizes."""
    found = []
    for past in (0, 200, 600):
        for chunk in (16, 64, 256, 512):
            for rows in (0, 4):
                shape = StepShape()
                shape.add_prefill(past, chunk)
                if rows:
                    shape.add_decodes(rows, 300 * rows)
                found.append(shape)
    for rows in (1, 2, 4, 8, 16):
        for context in (50, 500):
            shape = StepShape()
            shape.add_decodes(rows, context * rows)
            found.append(shape)
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_formula_is_found_again(noise: float) -> None:
    steps = NoisySteps(TRUTH, noise, random.Random(1))
    samples = [(shape, [steps.step_s(shape) for _ in range(20)]) for shape in shapes()]
    found = fit(samples)
    off = residuals(found, samples)
    assert off.mape < 0.01 + 0.3 * noise
    assert off.noise == pytest.approx(noise, abs=0.01)
    assert off.points == len(samples)
    for shape in shapes():
        assert found.step_s(shape) == pytest.approx(TRUTH.step_s(shape), rel=0.02 + 0.8 * noise)


def test_a_table_is_found_again_and_tells_steps_that_the_formula_cannot() -> None:
    truth = Table(points=((1, 0.01), (16, 0.012), (64, 0.05), (512, 0.3), (1024, 0.9)), context_s=1e-6, pair_s=1e-7)
    samples = [(shape, [truth.step_s(shape)]) for shape in shapes()]
    table = tabulate(samples)
    assert residuals(table, samples).mape < 0.03
    assert residuals(table, samples).mape < residuals(fit(samples), samples).mape
    with pytest.raises(ValueError, match="several sizes"):
        tabulate(samples[:1])


def test_a_cost_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = CostFile(cost=TRUTH, residuals=EXACT, crowded=Fitted(a0=0.02, a1=0.0), crowded_residuals=EXACT)
    path = tmp_path / "cost.json"
    path.write_bytes(encoded(content))
    assert read_cost_file(path) == content
    assert msgspec.convert({"role": "mixed", **content.of_group()}, Group).cost == TRUTH


def test_the_same_measurements_are_fitted_in_another_way() -> None:
    measured = tuple(
        Measured(
            tokens=shape.tokens,
            past_chunk=shape.past_chunk,
            chunk_sq=shape.chunk_sq,
            decode_context=shape.decode_context,
            decodes=shape.decodes,
            past=shape.past,
            alone_s=(TRUTH.step_s(shape),),
            crowded_s=(2.0 * TRUTH.step_s(shape),),
        )
        for shape in shapes()
    )
    bare = CostFile(cost=Fitted(a0=1.0, a1=1.0), residuals=EXACT)
    assert bare.refitted("table") == bare
    content = msgspec.structs.replace(bare, measured=measured)
    fitted, table = content.refitted("fitted"), content.refitted("table")
    assert isinstance(table.cost, Table)
    for shape in shapes():
        assert fitted.cost.step_s(shape) == pytest.approx(TRUTH.step_s(shape), rel=0.01)
        assert fitted.crowded is not None
        assert fitted.crowded.step_s(shape) == pytest.approx(2.0 * TRUTH.step_s(shape), rel=0.01)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "Expected `object`"),
        ("{", "truncated"),
        ('{"cost": {"kind": "fitted", "a0": -1, "a1": 1}, "residuals": {}}', "a0 must not be negative"),
        ('{"cost": {"kind": "fitted", "a0": 1, "a1": 1}}', "missing required field `residuals`"),
        ('{"cost": {"kind": "abacus"}}', "Invalid value 'abacus'"),
        (None, "No such file"),
    ],
)
def test_what_is_no_cost_file_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "cost.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_cost_file(path)


def test_steps_are_longer_while_a_neighbour_computes() -> None:
    clock, chance = Clock(), random.Random(0)
    cores = SharedCores(clock)
    one, other = (
        CrowdedSteps(NoisySteps(Fitted(a0=1.0, a1=0.0), 0.0, chance), NoisySteps(Fitted(a0=3.0, a1=0.0), 0.0, chance),
                     cores)
        for _ in range(2)
    )  # fmt: skip
    shape = shapes()[0]
    assert one.step_s(shape) == 1.0
    assert other.step_s(shape) == 3.0
    clock.run(lambda: False, 1.5)
    assert one.step_s(shape) == 3.0
    clock.run(lambda: False, 10.0)
    assert other.step_s(shape) == 1.0


def test_replicas_that_share_a_machine_are_slower_and_a_turn_of_the_loop_counts() -> None:
    alone = small(mixed=2, rate=3.0, duration_s=20.0, noise=0.0)
    group = msgspec.structs.replace(alone.fleet[0], machine="one", crowded=Fitted(a0=0.04, a1=6e-4, b3=2e-4))
    shared = msgspec.structs.replace(alone, fleet=(group,))
    slow = msgspec.structs.replace(alone, fleet=(msgspec.structs.replace(alone.fleet[0], turn_s=0.01),))
    tpot = [simulate(one).usual.tpot_s.p50 for one in (alone, shared, slow)]
    assert tpot[1] > 1.2 * tpot[0]
    assert tpot[2] > tpot[0] + 0.009
    assert shared.fleet[0].role is Role.MIXED

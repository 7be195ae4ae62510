"""The shell with the real core and the fake engine: failing steps, failing rows, drains, and nothing left anywhere."""

from __future__ import annotations

from typing import Any

from contracts import wire
from contracts.phase import Role
from contracts.request import FinishReason
from contracts.views import ReplicaView, StepCost
from engine.fake import FakeEngine, fake_layout, fake_spec
from scheduling.config import ReplicaCoreConfig
from scheduling.invariants import assert_nothing_left
from scheduling.replica_core import ReplicaCore

SPEC = fake_spec(vocab_size=100, max_context=1024)
COST = StepCost(a0=1e-3, a1=1e-5, b0=0.0, b1=0.0, b2=0.0, b3=0.0)


def real(num_blocks: int = 64, **settings: Any) -> dict[str, Any]:
    """A real core and the engine it drives, as arguments of `start_shell`."""
    engine = FakeEngine(SPEC, fake_layout(SPEC), num_blocks)
    core = ReplicaCore(
        ReplicaCoreConfig(**settings), Role.MIXED, engine.kv_layout, num_blocks, 1024, SPEC.eos_token_ids, COST
    )
    return {"core": core, "engine": engine}


def idle(view: ReplicaView) -> bool:
    return view.running == 0 and view.waiting == 0 and view.free_blocks == view.num_blocks


async def test_a_failed_step_fails_its_batch_and_frees_its_blocks(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(**real())
    router = await connect_router(live.endpoint)
    await router.submit("a", "b", max_tokens=900)
    await router.wait_outputs("a", 3)
    await router.wait_outputs("b", 3)
    live.engine.fail_on(lambda batch: len(batch.chunks) == 2)
    ends = [await router.wait_end(request_id) for request_id in "ab"]
    assert [end.finish for end in ends] == [FinishReason.ERROR] * 2
    assert [end.error.status for end in ends] == [500] * 2
    await router.submit("after", max_tokens=5)
    assert (await router.wait_end("after")).finish is FinishReason.LENGTH
    await router.wait_view(idle)
    assert live.engine.faults == []


async def test_a_failed_row_fails_its_sequence_alone(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(**real())
    router = await connect_router(live.endpoint)
    await router.submit("bad", prompt=range(5), max_tokens=900)
    await router.submit("good", prompt=range(9), max_tokens=60)
    await router.wait_outputs("bad", 3)
    live.engine.fail_rows_on(lambda chunk: chunk.sequence_id.startswith("bad#"))
    assert (await router.wait_end("bad")).finish is FinishReason.ERROR
    assert (await router.wait_end("good")).finish is FinishReason.LENGTH
    await router.wait_view(idle)
    assert live.engine.faults == []


async def test_full_cache_preempts_and_every_stream_still_ends(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(**real(num_blocks=12, output_reserve_quantile=0.0))
    router = await connect_router(live.endpoint)
    for index in range(6):
        await router.submit(f"s{index}", prompt=range(index, index + 20), max_tokens=60)
    for index in range(6):
        assert (await router.wait_end(f"s{index}", 30)).finish is FinishReason.LENGTH
        assert len(router.tokens(f"s{index}")) == 60
    await router.wait_view(idle)
    assert live.engine.faults == []


async def test_over_the_bounds_a_request_is_refused_whole(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(**real(max_running=2, max_waiting=2))
    router = await connect_router(live.endpoint)
    await router.submit("n0", "n1", "n2", "n3", "n4", max_tokens=500)
    assert {(await router.wait(wire.Refused)).error.status for _ in range(5)} == {429}
    await router.submit("fits", max_tokens=5)
    assert (await router.wait_end("fits")).finish is FinishReason.LENGTH
    await router.wait_view(idle)
    assert not any(router.outputs(f"n{index}") for index in range(5))


async def test_a_drain_leaves_nothing(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(**real())
    router = await connect_router(live.endpoint)
    await router.submit("a", "b", "c", max_tokens=200)
    await router.wait_outputs("c", 1)
    await router.send(wire.Drain())
    for request_id in "abc":
        assert (await router.wait_end(request_id)).finish is FinishReason.LENGTH
    assert "drained" in await live.ended()
    assert_nothing_left(live.core)

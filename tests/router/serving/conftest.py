"""Scripted replicas, one or many, in the same event loop as the router and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from contracts.handoff import LinkView
from contracts.phase import Role
from engine.checkpoint.model_files import ModelFiles
from router.app import build_app
from router.config import RouterConfig
from tests.router.serving.data_plane import DataPlane
from tests.router.serving.scripted_replica import ScriptedReplica


@pytest.fixture
async def replica(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[ScriptedReplica]:
    scripted = ScriptedReplica(model_files, tiny_tokenizer)
    yield scripted
    await scripted.close()


@pytest.fixture
async def two_replicas(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[list[ScriptedReplica]]:
    both = [ScriptedReplica(model_files, tiny_tokenizer, f"r{i}") for i in range(2)]
    yield both
    for scripted in both:
        await scripted.close()


StartPools = Callable[..., Awaitable[list[ScriptedReplica]]]


@pytest.fixture
async def pools(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[StartPools]:
    """`await pools("pd")`: a prefill and a decode replica that can hand over (p, d, m for mixed; p0, d0, p1, ...)."""
    started: list[ScriptedReplica] = []

    async def start(kinds: str) -> list[ScriptedReplica]:
        plane = DataPlane()
        for i, kind in enumerate(kinds):
            replica = ScriptedReplica(model_files, tiny_tokenizer, f"{kind}{kinds[:i].count(kind)}")
            replica.role = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED}[kind]
            replica.plane = plane
            endpoint = f"tcp://127.0.0.1:{7000 + i}"
            replica.identity = msgspec.structs.replace(replica.identity, data_endpoints=(endpoint,))
            started.append(replica)
        takers = [replica for replica in started if replica.role is Role.DECODE]
        for replica in started:
            if replica.role is Role.PREFILL:
                replica.links = tuple(link_to(taker) for taker in takers)
        return started

    yield start
    for replica in started:
        await replica.close()


def link_to(taker: ScriptedReplica, why_not: str | None = None) -> LinkView:
    return LinkView(
        peer_id=taker.identity.replica_id,
        peer_incarnation=taker.identity.incarnation,
        why_not=why_not,
        transport="test",
        device="none",
        bytes_per_s=1e9,
        latency_s=1e-4,
        transfers=3,
    )


@pytest.fixture
async def router(start_router: Any, replica: ScriptedReplica) -> Any:
    """One router over one replica."""
    return await start_router(replica)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(model_files: ModelFiles, tiny_tokenizer: Tokenizer) -> AsyncIterator[httpx.AsyncClient]:
    """A client straight into the application, shared by a module whose tests need no sockets of their own.

    Such a module says `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
    """
    scripted = ScriptedReplica(model_files, tiny_tokenizer)
    app = build_app(RouterConfig(model="tiny", replicas=(scripted.endpoint,)), model_files)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(5):
            while app.state.served.fleet.not_ready() is not None:  # noqa: ASYNC110  (nothing sets an event for it)
                await asyncio.sleep(0.01)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as plain:
            plain.app, plain.replica = app, scripted  # type: ignore[attr-defined]
            yield plain
    await scripted.close()


@pytest.fixture
def gated(replica: ScriptedReplica) -> Iterator[ScriptedReplica]:
    """The replica, producing nothing until its gate is set."""
    replica.gate.clear()
    yield replica
    replica.gate.set()

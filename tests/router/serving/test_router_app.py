"""What the application promises as a whole: no torch, liveness that tells the truth, an error for every surprise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import msgspec
import pytest

from contracts.errors import ConfigError
from router.app import build_app
from router.config import RequestLimits, RouterConfig


def test_the_router_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, router.server; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


async def test_a_fleet_loop_that_ends_is_reported_and_fails_liveness(
    model_files: Any, replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(self: Any) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("router.fleet.Fleet._tick", breaks)
    broken = asyncio.Event()
    app = build_app(RouterConfig(model="tiny", replicas=(replica.endpoint,)), model_files, on_broken=broken.set)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(broken.wait(), 5)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
            assert (await client.get("/health/live")).status_code == 503
            assert (await client.get("/health/ready")).status_code == 503
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 503


async def test_a_bug_in_a_request_is_a_500_in_the_same_shape(
    start_router: Any, replica: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> None:
        raise RuntimeError("a bug of ours, with a secret in it")

    router = await start_router(replica)
    monkeypatch.setattr("router.answers.Answers.whole", breaks)
    answer = await router.http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    monkeypatch.undo()
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200
    await router.wait_idle(replica)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"replicas": ()}, "replicas"),
        ({"replicas": ("tcp://a:1", "tcp://a:1")}, "replicas"),
        ({"replicas": ("a:1",)}, "replicas"),
        ({"replicas": ("tcp://a",)}, "replicas"),
        ({"replicas": ("ipc:///tmp/x",)}, "replicas"),
        ({"port": 70000}, "port"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"silence_s": 0.1}, "silence_s"),
        ({"max_context": 1}, "max_context"),
        *(({"limits": {name: 0}}, name) for name in RequestLimits.__struct_fields__),
        ({"limits": {"max_n": -1}}, "max_n"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        msgspec.convert({"model": "tiny", "replicas": ("tcp://a:1",), **wrong}, RouterConfig)
    assert refused.value.param == param


def test_more_context_than_the_model_has_is_refused(model_files: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        build_app(RouterConfig(model="tiny", replicas=("tcp://a:1",), max_context=513), model_files)
    assert refused.value.param == "max_context"

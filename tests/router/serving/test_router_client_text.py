"""An error shows little of what a client sent, and can always be written, whatever that text was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.errors import ErrorInfo
from router.app import _error

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = {"role": "user", "content": "hi"}
BOTH = ("/v1/chat/completions", "/v1/completions")


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "raw",
    [
        '{"\\ud800":NaN}',
        '{"model":"tiny","prompt":"hi","\\udfff":NaN}',
        '{"model":"tiny","metadata":{"\\ud800":[0,Infinity]}}',
        '{"' + "\\ud800" * 1000 + '":NaN}',
        '{"a":"\\ud800","b":NaN}',
    ],
)
async def test_half_characters_beside_numbers_that_are_none(client: Any, error_ok: Any, path: str, raw: str) -> None:
    assert "finite" in await error_ok(client, await client.post(path, content=raw), 400)


async def test_an_error_of_any_text_can_be_answered() -> None:
    answer = _error(ErrorInfo(status=400, code="invalid_request", message="half \ud800", param="\udfff"))
    assert json.loads(bytes(answer.body))["error"]["code"] == "invalid_request"


LONG = "x" * 200_000


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({LONG: 1}, 400),
        ({"model": LONG}, 404),
        ({"messages": [{"role": LONG, "content": "x"}]}, 400),
        ({"messages": [{"role": [LONG], "content": "x"}]}, 400),
        ({"messages": [{**USER, LONG: 1}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": LONG}]}]}, 400),
        ({"logit_bias": {LONG: 1}}, 400),
        ({"stream": True, "stream_options": {LONG: 1}}, 400),
        ({"metadata": {LONG: 1}}, 400),
        ({"stop_token_ids": [10**4000]}, 400),
        ({LONG: float("nan")}, 400),
        ({LONG: {LONG: [0.0] * 10_000 + [float("inf")]}}, 400),
    ],
)
async def test_errors_do_not_repeat_more_than_a_little(
    client: Any, error_ok: Any, fields: dict[str, Any], status: int
) -> None:
    answer = await client.post(BOTH[0], content=json.dumps({"model": "tiny", "messages": [USER], **fields}))
    await error_ok(client, answer, status)
    assert len(answer.content) < 1024


async def test_nor_of_a_path(client: Any, error_ok: Any) -> None:
    answer = await client.get("/" + "x" * 10_000)
    await error_ok(client, answer, 404)
    assert len(answer.content) < 1024

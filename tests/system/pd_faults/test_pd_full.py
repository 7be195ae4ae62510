"""Pools too small for what is asked, on either side: requests wait their turn and end right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.system

SMALL = {"fake": {"num_blocks": 64}}
"""Three prompts of 300 tokens."""


@pytest.fixture(scope="module", params=[pytest.param("p", marks=pytest.mark.slow), "d"])
def small(start_pools: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    own = {"p": {}, "d": {}, request.param: SMALL}
    with start_pools(**own) as pools:
        yield pools


async def test_three_fit_and_sixteen_ask(small: Any, checked: Any) -> None:
    async with checked(small) as pools:
        asked = [pools.ask(300, 24, on_unavailable="fail") for _ in range(16)]
        assert set(await pools.answers(*asked)) == {"length"}


@pytest.mark.slow
async def test_hnd_5_full_again_and_again(small: Any, checked: Any) -> None:
    """With the prefix cache on, blocks that wait to be sent are nobody else's: 50 times 8 prompts that do not fit."""
    async with checked(small) as pools:
        for _ in range(50):
            asked = [pools.ask(300, 32) for _ in range(8)]
            assert set(await pools.answers(*asked)) == {"length"}


@pytest.mark.slow
async def test_a_prompt_that_never_fits_is_refused(small: Any, checked: Any) -> None:
    async with checked(small) as pools:
        asked = pools.ask(1500, 24, on_unavailable="fail")
        fits = pools.ask(300, 24, on_unavailable="fail")
        await pools.answers(asked, fits)
        assert fits.end == "length"
        assert asked.status in (400, 503), asked
        pools.asks.remove(asked)

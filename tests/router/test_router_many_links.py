"""Links to hundreds of addresses, and what becomes of them where too many files are open."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from router.config import RouterConfig
from router.membership import Links, control_context


@pytest.fixture
def few_files() -> Iterator[None]:
    """About a hundred more file descriptors than are open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_zmq_allows_sockets_for_thousands_of_links() -> None:
    context = control_context()
    assert context.get(zmq.MAX_SOCKETS) >= 3 * 5000
    context.destroy(linger=0)


async def test_a_link_that_finds_no_file_descriptor_tries_again_and_ends_nothing(few_files: None) -> None:
    context = control_context()
    config = RouterConfig(model="m", discovery="kubernetes")
    links = Links(config, context, Nobody())
    links.found([f"tcp://127.79.0.{number}:9" for number in range(1, 120)])
    task = asyncio.create_task(links.run())
    async with asyncio.timeout(20):
        while not any("cannot open a connection" in link.why_not for link in links):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    context.destroy(linger=0)


class Nobody:
    """An owner that no replica of these links ever reaches."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")

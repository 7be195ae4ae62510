"""The engine's thread: order, errors, an event loop that is never blocked, an end with a deadline."""

from __future__ import annotations

import asyncio
import threading

import pytest

from contracts.errors import EngineFailure
from replica.engine_thread import EngineThread


async def test_calls_run_in_order_on_one_named_thread() -> None:
    thread = EngineThread("one")
    seen: list[tuple[int, str]] = []
    calls = [thread.call(lambda i=i: seen.append((i, threading.current_thread().name))) for i in range(20)]  # type: ignore[misc]
    await asyncio.gather(*calls)
    assert seen == [(i, "one") for i in range(20)]
    assert thread.close(5)


async def test_what_a_call_raises_comes_back_and_the_thread_lives_on() -> None:
    thread = EngineThread("raises")

    def fail() -> None:
        raise EngineFailure("no")

    with pytest.raises(EngineFailure, match="no"):
        await thread.call(fail)
    assert await thread.call(lambda: 7) == 7
    assert thread.close(5)


async def test_a_busy_thread_blocks_nobody_and_close_has_a_deadline() -> None:
    thread, release = EngineThread("busy"), threading.Event()
    call = thread.call(lambda: release.wait(30))
    await asyncio.sleep(0.02)
    assert not call.done()
    call.cancel()  # nobody waits for it any more; its late result is dropped
    assert not thread.close(0.05)
    release.set()
    assert thread.close(10)
    await asyncio.sleep(0)


async def test_a_result_after_the_event_loop_is_closed_ends_nothing() -> None:
    thread, release = EngineThread("late"), threading.Event()

    async def leave() -> None:
        thread.call(lambda: release.wait(30))

    await asyncio.to_thread(asyncio.run, leave())
    release.set()
    assert await thread.call(lambda: "alive") == "alive"
    assert thread.close(5)

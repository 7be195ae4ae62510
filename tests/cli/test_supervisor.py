"""The supervisor with real processes: order, log, readiness, death, and that nothing stays behind."""

from __future__ import annotations

import sys

import pytest

from cli.supervisor import ChildFailedError, Supervisor

SLEEP = "import time; time.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_a_ready_child_is_announced_and_its_log_is_prefixed() -> None:
    lines: list[str] = []
    supervisor = Supervisor(lines.append)
    child = await supervisor.start("r0", python(f"print('hello'); print('PHASESERVE_READY tcp://x'); {SLEEP}"))
    assert await supervisor.wait_ready(child, 20) == "tcp://x"
    await supervisor.stop(["r0"], 10)
    assert child.process.returncode == -15
    assert lines == ["      r0 | hello"]


async def test_a_child_that_dies_before_it_is_ready_is_named_with_its_code() -> None:
    supervisor = Supervisor(lambda _: None)
    child = await supervisor.start("r0", python("import sys; sys.exit(3)"))
    with pytest.raises(ChildFailedError, match="r0 ended with code 3"):
        await supervisor.wait_ready(child, 20)
    await supervisor.stop(["r0"], 1)


async def test_a_child_that_is_never_ready_is_reported_at_the_deadline() -> None:
    supervisor = Supervisor(lambda _: None)
    child = await supervisor.start("r0", python(SLEEP))
    with pytest.raises(ChildFailedError, match="not ready after"):
        await supervisor.wait_ready(child, 0.2)
    await supervisor.stop(["r0"], 10)


async def test_a_child_that_ignores_sigterm_is_killed_and_that_is_said() -> None:
    lines: list[str] = []
    supervisor = Supervisor(lines.append)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('PHASESERVE_READY ok');" + SLEEP
    child = await supervisor.start("deaf", python(deaf))
    await supervisor.wait_ready(child, 20)
    await supervisor.stop(["deaf"], 0.5)
    assert child.process.returncode == -9
    assert any("killed" in line for line in lines)


async def test_the_first_child_to_end_is_returned_and_a_long_line_is_survived() -> None:
    lines: list[str] = []
    supervisor = Supervisor(lines.append)
    await supervisor.start("stays", python(SLEEP))
    await supervisor.start("goes", python("print('y' * 3_000_000); print('after')"))
    assert (await supervisor.wait_any_end()).name == "goes"
    supervisor.kill_all()
    await supervisor.stop(["stays", "goes"], 10)
    assert "    goes | after" in lines

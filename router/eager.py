"""Beginning an awaitable where one stands, without a task. Python 3.12 has eager tasks; this is for 3.11 too."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any


class Suspended:
    """The rest of an awaitable that was begun elsewhere and has to wait: awaited once, or closed."""

    __slots__ = ("_steps", "_waits_for")

    def __init__(self, steps: Generator[Any, Any, None], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        """Hands the task the future that the first step was already given, then goes on as `await` does."""
        try:
            yield self._waits_for
        except BaseException:  # the wait was cancelled or failed, and so ends what waited
            self._steps.close()
            raise
        yield from self._steps

    def close(self) -> None:
        """Gives the rest up."""
        self._steps.close()


def begin(awaitable: Awaitable[None]) -> Suspended | None:
    """Run `awaitable` up to its first wait, now. None when it ended without one; raises what it raises.

    It must not ask for the current task before its first wait, because it does not run in the one that will end it.
    """
    steps = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration:
        return None
    return Suspended(steps, waits_for)

"""How a program ends: its exit status, one line for what went wrong, and no word where nobody reads any more."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from contracts.errors import ConfigError, ModelError, PhaseServeError

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED, EXIT_UNREAD = 1, 2, 130, 141
"""`EXIT_UNREAD`: what a shell says of a program that SIGPIPE ended, as it ends others whose reader has left."""
_STDOUT, _STDERR = 1, 2


def exit_status(program: str, run: Callable[[], int | None]) -> int:
    """What `run` returns (None: 0), once all that it printed is out.

    2 for settings or a model that were refused, 1 for what failed later, each with one line on standard error.
    """
    try:
        try:
            return run() or 0
        finally:
            if sys.stdout is not None:  # it may have been closed before the program began
                sys.stdout.flush()
    except (ConfigError, ModelError) as error:
        return _ended(program, error.message, EXIT_REFUSED)
    except PhaseServeError as error:
        return _ended(program, error.message, EXIT_FAILED)
    except OSError as error:
        _drop_unwritten()
        if isinstance(error, BrokenPipeError) and (_is_unread(_STDOUT) or _is_unread(_STDERR)):
            return EXIT_UNREAD
        return _ended(program, str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _ended(program: str, message: str, status: int) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return status


def _is_unread(number: int) -> bool:
    """Whether this file is a pipe whose reader has left, not, say, a connection of the program's own."""
    polled = select.poll()
    polled.register(number, 0)
    return any(event & select.POLLERR for _, event in polled.poll(0))


def _drop_unwritten() -> None:
    """What cannot be printed now is not tried again at the end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

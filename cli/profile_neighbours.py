"""Other engines that compute beside the one that is measured, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from cli.supervisor import own_command
from contracts.errors import Unavailable
from replica.profiling import Profiler

NEIGHBOUR = "--neighbour"
READY_MARK = "PHASESERVE_NEIGHBOUR_READY"
_READY_S = 300.0
_END_S = 30.0


class Neighbours:
    """`words` are those of this very command. Use as a context manager: they load at once and stay idle."""

    def __init__(self, words: Sequence[str], count: int) -> None:
        self._argv = own_command("profile", *words, NEIGHBOUR)
        self._processes: list[subprocess.Popen[str]] = []
        self._count = count

    def __enter__(self) -> Neighbours:
        for _ in range(self._count):
            self._processes.append(
                subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # as replicas are: Linux shares cores out among sessions
                )
            )
        return self

    def __exit__(self, *of: object) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def wait_ready(self) -> None:
        """Until all have loaded. Raises `Unavailable` when one ends before that (it has said why), or hangs."""
        late = threading.Timer(_READY_S, self._kill)
        late.start()
        try:
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline().strip() != READY_MARK:
                    raise Unavailable(f"a neighbour ended before it was ready, or was not within {_READY_S:.0f} s")
        finally:
            late.cancel()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def compute(self) -> None:
        """From now on, until the end. Raises `Unavailable` when one is gone."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError as error:
                raise Unavailable("a neighbour ended before it was needed") from error


def be_neighbour(profiler: Profiler) -> None:
    """Wait for a line, then compute until the end of the input: the parent's death is one."""
    print(READY_MARK, flush=True)
    if not sys.stdin.readline():
        return
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    for _ in _steps(profiler):
        if ended.is_set():
            return


def _steps(profiler: Profiler) -> Iterator[tuple[int, float]]:
    while True:
        yield from profiler.once()

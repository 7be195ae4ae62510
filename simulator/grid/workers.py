"""Worker processes, one case each at a time. They end with the parent, at a signal, or when a case takes too long.

The parent alone talks to a terminal and to the store. Nothing is shared but one pipe for each worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import msgspec

from contracts.errors import PhaseServeError
from simulator.grid.case import Extra, Value
from simulator.grid.figures import figures_of
from simulator.run import simulate
from simulator.scenario import Scenario

_END_S = 3.0
_LOOK_S = 1.0


class Outcome(msgspec.Struct, frozen=True):
    """What a run gave: figures, or why there are none."""

    figures: dict[str, Value]
    error: str
    wall_s: float


def run_one(scenario: Scenario, extra: Extra | None) -> Outcome:
    """One case, here. Whatever it raises is its outcome, so that the other cases go on."""
    started = time.monotonic()
    try:
        report = simulate(scenario)
        figures = figures_of(report)
        if extra is not None:
            figures.update(extra(report))
    except PhaseServeError as error:
        return Outcome({}, error.message, time.monotonic() - started)
    except Exception as error:  # noqa: BLE001  (the boundary of a case)
        return Outcome({}, f"{type(error).__name__}: {error}", time.monotonic() - started)
    return Outcome(figures, "", time.monotonic() - started)


@dataclass(slots=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    index: int = -1
    since: float = 0.0


class Workers:
    """`count` processes. Use it as a context: they are gone at its end."""

    def __init__(self, count: int, extra: Extra | None, limit_s: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._extra = extra
        self._limit_s = limit_s
        self._workers = [self._start() for _ in range(count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        until = time.monotonic() + _END_S
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join(_END_S)
            worker.pipe.close()

    def run(self, scenarios: Sequence[Scenario]) -> Iterator[tuple[int, Outcome]]:
        """The outcome of each by its index, as they come."""
        todo = list(range(len(scenarios)))[::-1]
        left = len(todo)
        while left:
            for worker in self._workers:
                if worker.index < 0 and todo:
                    self._give(worker, todo.pop(), scenarios)
            busy = [worker for worker in self._workers if worker.index >= 0]
            ready = wait([worker.pipe for worker in busy], _LOOK_S)
            for worker in busy:
                outcome = self._outcome(worker) if worker.pipe in ready else self._overdue(worker)
                if outcome is not None:
                    index, worker.index = worker.index, -1
                    left -= 1
                    yield index, outcome
                    if not worker.process.is_alive():
                        self._workers[self._workers.index(worker)] = self._start()

    def _start(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(there, self._extra), daemon=True)
        with _uninterrupted():
            process.start()
        there.close()
        return _Worker(process, here)

    def _give(self, worker: _Worker, index: int, scenarios: Sequence[Scenario]) -> None:
        worker.index, worker.since = index, time.monotonic()
        try:
            worker.pipe.send(scenarios[index])
        except OSError:
            return  # it is dead, and its pipe says so when it is read

    def _outcome(self, worker: _Worker) -> Outcome | None:
        try:
            received: Outcome = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(_END_S)
            code = worker.process.exitcode
            reason = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            return Outcome({}, f"the worker process ended ({reason})", time.monotonic() - worker.since)
        return received

    def _overdue(self, worker: _Worker) -> Outcome | None:
        wall_s = time.monotonic() - worker.since
        if wall_s < self._limit_s:
            return None
        worker.process.kill()
        worker.process.join(_END_S)
        return Outcome({}, f"given up after {self._limit_s:g} s of computing", wall_s)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started meanwhile never hears an interrupt from the terminal: it is the parent's to handle, which hears
    it at the end."""
    resource_tracker.ensure_running()  # its own start would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(pipe: Connection, extra: Extra | None) -> None:
    """The life of a worker: it ends with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            scenario: Any = pipe.recv()
        except EOFError:
            return
        pipe.send(run_one(scenario, extra))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)

"""Runs the cases of a grid on all cores, and keeps each row as soon as it is there."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from contracts.errors import ConfigError
from simulator.grid.case import Case, Extra, Row, code_version, key_of
from simulator.grid.progress import Progress, Silent, progress_of
from simulator.grid.store import Header, Store
from simulator.grid.workers import Outcome, Workers, run_one
from simulator.scenario import Scenario

LIMIT_S = 3600.0
"""Wall time after which a case is given up."""


def run_grid(
    cases: Iterable[Case],
    store: Path | None = None,
    workers: int | None = None,
    progress: bool = True,
    *,
    mixing: bool = True,
    extra: Extra | None = None,
    limit_s: float = LIMIT_S,
) -> list[Row]:
    """One row for each case, in their order; a case that fails is a row with its error, and the others go on.

    Rows that `store` holds already (same scenario, same code) are not computed again, unless they failed. `workers`
    processes (None: one for each core; 1: here). `extra`, a function of a module, adds figures of its own. Without
    `mixing` a store of another grid or of other code is refused. A script that calls this with more than one worker
    wants `if __name__ == "__main__":`, for its workers import it.

    Raises `ConfigError` for an empty grid, no worker, or a store that cannot be used; `KeyboardInterrupt` and
    `SystemExit(143)` at SIGINT and SIGTERM, when the workers have ended; what the store holds then is whole.
    """
    todo = tuple(cases)
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if not todo:
        raise ConfigError("the grid holds no case", param="grid")
    if count < 1:
        raise ConfigError("workers must be at least 1", param="workers")
    code = code_version()
    keys = [key_of(case.scenario, extra, code) for case in todo]
    kept = None
    if store is not None:
        kept = Store(store, Header(grid=_grid(keys, code), code=code), mixing=mixing)
    try:
        found = _run(todo, keys, kept, count, progress=progress, extra=extra, limit_s=limit_s)
    finally:
        if kept is not None:
            kept.close()
    return [Row(key=key, labels=case.labels, figures=found[key].figures, error=found[key].error,
                wall_s=found[key].wall_s) for case, key in zip(todo, keys, strict=True)]  # fmt: skip


def failed(rows: Sequence[Row]) -> list[Row]:
    """Those that have no figures."""
    return [row for row in rows if row.error]


def _grid(keys: Sequence[str], code: str) -> str:
    """Names the set of cases, whatever their order and their code."""
    plain = sorted({key.removesuffix(f"-{code}") for key in keys})
    return hashlib.sha256("\n".join(plain).encode()).hexdigest()[:24]


def _run(
    cases: Sequence[Case],
    keys: Sequence[str],
    store: Store | None,
    count: int,
    *,
    progress: bool,
    extra: Extra | None,
    limit_s: float,
) -> dict[str, Row]:
    found = {key: row for key, row in (store.rows if store is not None else {}).items() if not row.error}
    missing: dict[str, Case] = {}
    for case, key in zip(cases, keys, strict=True):
        if key not in found:
            missing.setdefault(key, case)
    names = list(missing)
    total = len(set(keys))
    shown: Progress = progress_of(total, total - len(names)) if progress else Silent()
    try:
        with _terminable():
            scenarios = [missing[name].scenario for name in names]
            with closing(_outcomes(scenarios, min(count, len(names)), extra, limit_s)) as outcomes:
                for index, outcome in outcomes:
                    name = names[index]
                    row = Row(key=name, labels=missing[name].labels, figures=outcome.figures, error=outcome.error,
                              wall_s=outcome.wall_s)  # fmt: skip
                    found[name] = row
                    if store is not None:
                        store.add(row)
                    shown.step()
    finally:
        shown.close()
    return found


def _outcomes(
    scenarios: Sequence[Scenario], count: int, extra: Extra | None, limit_s: float
) -> Generator[tuple[int, Outcome], None, None]:
    if count <= 1:
        for index, scenario in enumerate(scenarios):
            yield index, run_one(scenario, extra)
        return
    with Workers(count, extra, limit_s) as workers:
        yield from workers.run(scenarios)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the run as an exception does: workers first. Only the main thread can be told so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Converted GGUF files in the user's cache directory, each converted once.

Layout: `gguf/<key>/` is complete (it appears by one atomic rename), `gguf/<key>.tmp-<pid>/` is being written, and
`gguf/<key>.lock` is held (flock) by the process that writes. The kernel drops a dead process's lock, so whoever holds
the lock of a key knows that every temporary directory of that key is rubbish, whatever killed its writer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import ModelError
from engine.checkpoint.gguf_convert import CONVERTER_VERSION, convert_gguf

_HEAD_BYTES = 16 * 1024 * 1024
_NUM_SAMPLES = 256
_SAMPLE_BYTES = 16 * 1024
_LOCK_POLL_S = 0.1
_TEMPORARY = ".tmp-"


def default_cache_dir() -> Path:
    """`$PHASESERVE_CACHE`, else `$XDG_CACHE_HOME/phaseserve`, else `~/.cache/phaseserve`."""
    own = os.environ.get("PHASESERVE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phaseserve"


def converted_directory(gguf: Path, cache_dir: Path, *, deadline_s: float = 900.0, rebuild: bool = False) -> Path:
    """The directory with the converted content of `gguf`, converting it if no process has done so yet.

    Waits up to `deadline_s` for another process that converts the same file. With `rebuild` an existing conversion is
    thrown away first. Raises `ModelError` (bad file, no space, no permission, the deadline).
    """
    root = cache_dir / "gguf"
    target = root / f"{gguf_digest(gguf)}-v{CONVERTER_VERSION}"
    if target.is_dir() and not rebuild:
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, target.name, deadline_s):
            if rebuild:
                shutil.rmtree(target, ignore_errors=True)
            if not target.is_dir():
                _remove_rubbish(root, target.name)
                _convert_into(gguf, target)
    except OSError as error:
        raise ModelError(f"{gguf}: cannot be converted into {root}: {error.strerror or error}") from error
    return target


def gguf_digest(gguf: Path) -> str:
    """24 hex digits over the size, the first 16 MiB (all metadata), and 256 samples of 16 KiB up to the last byte.

    Cheap for files of any size. Two models that differ in their weights differ in every part of them, so samples tell
    them apart; a file altered on purpose between the samples is not noticed.
    """
    try:
        num_bytes = gguf.stat().st_size
        with gguf.open("rb") as file:
            state = hashlib.sha256(str(num_bytes).encode())
            state.update(file.read(_HEAD_BYTES))
            rest = max(0, num_bytes - _SAMPLE_BYTES - _HEAD_BYTES)
            for i in range(_NUM_SAMPLES if num_bytes > _HEAD_BYTES else 0):
                file.seek(max(_HEAD_BYTES + rest * i // (_NUM_SAMPLES - 1), 0))
                state.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ModelError(f"{gguf}: cannot be read: {error.strerror}") from error
    return state.hexdigest()[:24]


def _convert_into(gguf: Path, target: Path) -> None:
    temporary = target.with_name(f"{target.name}{_TEMPORARY}{os.getpid()}")
    temporary.mkdir()
    try:
        convert_gguf(gguf, temporary)
        _sync_directory(temporary)
        temporary.rename(target)
        _sync_directory(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_rubbish(root: Path, locked_key: str) -> None:
    """Remove what killed conversions left: of our own key, and of every other key that nobody holds now."""
    for leftover in root.glob(f"*{_TEMPORARY}*"):
        key = leftover.name.partition(_TEMPORARY)[0]
        if key == locked_key:
            shutil.rmtree(leftover, ignore_errors=True)
            continue
        with (root / f"{key}.lock").open("w") as lock:
            if _try_lock(lock.fileno()):
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(root: Path, key: str, deadline_s: float) -> Iterator[None]:
    path = root / f"{key}.lock"
    give_up_at = time.monotonic() + deadline_s
    with path.open("w") as lock:
        while not _try_lock(lock.fileno()):
            if time.monotonic() >= give_up_at:
                raise ModelError(f"{path}: another process has been converting this model for {deadline_s:g} s")
            time.sleep(_LOCK_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

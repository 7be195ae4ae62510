"""The CPU kernels as a shared library: compiled on first use by the system's compiler, kept in the user's cache.

The file name is keyed by everything the code depends on (sources, flags, CPU; not the compiler, so that an image may
bring the file and no compiler), and the file appears by one atomic rename: processes that compile at the same time do
the work twice, and never load half a file. A digest stands behind the library in the same file: one that was damaged
later is compiled again (loading a truncated library would kill the process).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch  # noqa: F401  its OpenMP runtime must be loaded first: then the kernels use the same thread pool

from engine.checkpoint.conversion_cache import default_cache_dir
from engine.native_abi import ABI_VERSION, declare

SOURCES = Path(__file__).parent / "cpu_kernels"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC")
KEPT_LIBRARIES = 8
_COMPILE_DEADLINE_S = 180.0
_CPU_FIELDS = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")


class NativeKernelError(Exception):
    """The kernels cannot be used here; the message says why."""


def load_kernels(cache_dir: Path | None = None, compilers: tuple[str, ...] = COMPILERS) -> ctypes.CDLL:
    """The kernels, with argument types declared. Raises `NativeKernelError`."""
    path = compiled_library(cache_dir or default_cache_dir(), compilers)
    try:
        library = declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        raise NativeKernelError(f"{path} cannot be loaded: {error}") from error
    if library.ps_abi_version() != ABI_VERSION:
        raise NativeKernelError(f"{path} has another ABI version than this code")
    return library


@cache
def _kernels_or_reason() -> ctypes.CDLL | str:
    try:
        return load_kernels()
    except NativeKernelError as error:
        return str(error)


def native_available() -> str | None:
    """None when the kernels can be used, else the reason. Compiles them if need be; asks once per process."""
    found = _kernels_or_reason()
    return found if isinstance(found, str) else None


def native_kernels() -> ctypes.CDLL:
    """The kernels of this process. Raises `NativeKernelError`."""
    found = _kernels_or_reason()
    if isinstance(found, str):
        raise NativeKernelError(found)
    return found


def compiled_library(cache_dir: Path, compilers: tuple[str, ...] = COMPILERS) -> Path:
    """Path of the compiled kernels, compiling them if the cache has none. Raises `NativeKernelError`."""
    directory = cache_dir / "native"
    target = directory / f"cpu-{_key()}.so"
    if _is_whole(target):
        return target
    compiler = next((found for name in compilers if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeKernelError(f"no C++ compiler found (looked for {', '.join(compilers)})")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".compile-") as scratch:
            unfinished = Path(scratch) / target.name
            _compile(compiler, unfinished)
            _seal(unfinished)
            unfinished.replace(target)
        _forget_old(directory)
    except OSError as error:
        raise NativeKernelError(f"cannot write {directory}: {error.strerror or error}") from error
    return target


def _forget_old(directory: Path) -> None:
    """Keep the latest libraries: every version of the sources and every kind of CPU has its own. Whoever has one loaded
    keeps it until the end."""
    libraries = sorted(directory.glob("cpu-*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    for library in libraries[KEPT_LIBRARIES:]:
        library.unlink(missing_ok=True)


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *FLAGS, str(SOURCES / "decoder.cpp"), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeKernelError(f"{compiler} did not run: {error}") from error
    if done.returncode != 0:
        raise NativeKernelError(f"{compiler} failed: {_first_error(done.stderr)}")


def _seal(library: Path) -> None:
    """Append the digest of the file; what loads a library does not look behind its end."""
    digest = hashlib.sha256(library.read_bytes()).digest()
    with library.open("ab") as file:
        file.write(digest)


def _is_whole(library: Path) -> bool:
    try:
        data = library.read_bytes()
    except OSError:
        return False
    size = hashlib.sha256().digest_size
    return hashlib.sha256(data[:-size]).digest() == data[-size:]


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no output")


def _key() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in {".h", ".cpp"}:
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    for part in (*FLAGS, platform.machine(), _cpu()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """What `-march=native` depends on, as far as Linux tells; elsewhere the processor's name."""
    info = Path("/proc/cpuinfo")
    if not os.access(info, os.R_OK):
        return platform.processor()
    first = info.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    return "\n".join(line for line in first.splitlines() if line.split("\t", 1)[0].strip() in _CPU_FIELDS)

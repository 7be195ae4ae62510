"""Compiling the kernels: once, safely with others at it, and a reason in words where it cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import native_compile
from engine.checkpoint.conversion_cache import default_cache_dir
from engine.native_compile import NativeKernelError, compiled_library, load_kernels, native_available

STUB_COMPILER = """#!/bin/sh
echo compile >> "${0%/*}/calls"
{body}
"""


def stub_compiler(directory: Path, body: str) -> tuple[str, ...]:
    """A compiler that runs `body`, with "$out" as the file asked for, and writes a line to `calls` each time."""
    path = directory / "cxx"
    find_out = 'while [ "$1" != -o ]; do shift; done; out="$2"\n'
    path.write_text(STUB_COMPILER.replace("{body}", find_out + body))
    path.chmod(0o755)
    return (str(path),)


def test_compiles_once(tmp_path: Path) -> None:
    compilers = stub_compiler(tmp_path, 'echo library > "$out"')
    first = compiled_library(tmp_path / "cache", compilers)
    assert first.read_bytes().startswith(b"library\n")
    assert compiled_library(tmp_path / "cache", compilers) == first
    assert (tmp_path / "calls").read_text() == "compile\n"
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = stub_compiler(tmp_path, 'echo library > "$out"')
    before = compiled_library(tmp_path / "cache", compilers)
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in native_compile.SOURCES.iterdir():
        (sources / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(native_compile, "SOURCES", sources)
    assert compiled_library(tmp_path / "cache", compilers) == before
    (sources / "simd.h").write_text("// changed\n")
    assert compiled_library(tmp_path / "cache", compilers) != before


def test_old_libraries_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compilers = stub_compiler(tmp_path, 'echo library > "$out"')
    monkeypatch.setattr(native_compile, "KEPT_LIBRARIES", 3)
    latest = [tmp_path]
    for number in range(5):
        monkeypatch.setattr(native_compile, "FLAGS", (f"-D{number}",))
        latest.append(compiled_library(tmp_path / "cache", compilers))
        os.utime(latest[-1], (number, number))
    assert set((tmp_path / "cache" / "native").glob("cpu-*.so")) == set(latest[-3:])


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(NativeKernelError, match=r"no C\+\+ compiler found \(looked for no-such-compiler\)"):
        compiled_library(tmp_path, ("no-such-compiler",))


def test_a_failing_compiler_says_its_error_and_leaves_nothing(tmp_path: Path) -> None:
    compilers = stub_compiler(tmp_path, 'echo half > "$out"; echo "x.h:1: error: unknown target" >&2; exit 1')
    with pytest.raises(NativeKernelError, match="error: unknown target"):
        compiled_library(tmp_path / "cache", compilers)
    assert list((tmp_path / "cache" / "native").iterdir()) == []


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    compilers = stub_compiler(tmp_path, 'echo "not a library" > "$out"')
    with pytest.raises(NativeKernelError, match="cannot be loaded"):
        load_kernels(tmp_path / "cache", compilers)


def test_a_file_damaged_after_it_was_compiled_is_compiled_again(tmp_path: Path) -> None:
    reason = native_available()
    if reason is not None:
        pytest.skip(reason)
    good = tmp_path / "good.so"
    good.write_bytes(compiled_library(default_cache_dir()).read_bytes()[:-32])
    compilers = stub_compiler(tmp_path, f'cp {good} "$out"')
    whole = compiled_library(tmp_path / "first", compilers).read_bytes()
    for index, damaged in enumerate((b"", b"no library", whole[:4096], whole[:-1])):
        cache = tmp_path / str(index)  # a file of its own: one that is loaded must never be written to
        path = compiled_library(cache, compilers)
        path.write_bytes(damaged)
        assert load_kernels(cache, compilers)
        assert path.read_bytes() == whole


def test_what_was_compiled_needs_no_compiler(tmp_path: Path) -> None:
    path = compiled_library(tmp_path / "cache", stub_compiler(tmp_path, 'echo library > "$out"'))
    assert compiled_library(tmp_path / "cache", ("no-such-compiler",)) == path


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(NativeKernelError, match="cannot write"):
        compiled_library(blocked, stub_compiler(tmp_path, 'echo library > "$out"'))


def test_two_processes_compile_at_the_same_time(tmp_path: Path) -> None:
    """Both get a whole library, whoever renames last."""
    compilers = stub_compiler(tmp_path, 'sleep 0.5; echo library > "$out"')
    code = (
        "import sys; from pathlib import Path; from engine.native_compile import compiled_library\n"
        "print(compiled_library(Path(sys.argv[1]), (sys.argv[2],)).read_bytes()[:7].decode())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache"), compilers[0]]
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in pair] == ["library", "library"]
    assert len(list((tmp_path / "cache" / "native").iterdir())) == 1


def test_the_reason_is_found_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    native_compile._kernels_or_reason.cache_clear()
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise NativeKernelError("no kernels on this machine")

    with monkeypatch.context() as patched:
        patched.setattr(native_compile, "load_kernels", fail)
        assert native_available() == "no kernels on this machine"
        assert native_available() == "no kernels on this machine"
        with pytest.raises(NativeKernelError, match="no kernels on this machine"):
            native_compile.native_kernels()
        assert calls == [1]
    native_compile._kernels_or_reason.cache_clear()

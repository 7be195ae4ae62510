"""The promises about form that no linter checks: size, names, and imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "contracts", "scheduling", "engine", "kvtransfer", "prefill_workers", "decode_workers",
    "replica", "router", "simulator", "experiments", "cli", "k8s",
)  # fmt: skip
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "impl", "misc"}
OPTIONAL_BACK_ENDS = {
    "cli/discovery.py",  # the client of the Kubernetes API is an extra
    "engine/build.py",  # the native executor is chosen by configuration
    "replica/load.py",  # the torch engine is not imported when the fake one was asked for
}


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if "__pycache__" not in path.parts]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_shape(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    name = str(path.relative_to(ROOT))
    assert text.count("\n") <= MAX_FILE_LINES, "a room that wants splitting"
    assert len(Path(name).parts) <= 3, "folders are at most two deep"
    assert not VAGUE_NAMES & set(Path(name).with_suffix("").parts), "a name that says nothing"
    assert ast.get_docstring(tree), "a module docstring makes a promise"
    long = [f.name for f in functions(tree) if (f.end_lineno or 0) - f.lineno >= MAX_FUNCTION_LINES]
    assert not long, f"functions over {MAX_FUNCTION_LINES} lines"
    if name not in OPTIONAL_BACK_ENDS:
        inner = [
            node.lineno
            for function in functions(tree)
            for node in ast.walk(function)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOMS
        ]
        assert not inner, f"imports of our own rooms inside functions, lines {inner}"


def importers(module: str) -> set[str]:
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name == module or name.startswith(module + ".") for name in names):
                found.add(str(path.relative_to(ROOT)))
    return found


def test_the_checkpoint_files_need_no_torch() -> None:
    assert not {name for name in importers("torch") if name.startswith("engine/checkpoint/")}


def test_zmq_stays_at_the_sockets() -> None:
    assert {name.split("/")[0] for name in importers("zmq")} <= {"replica", "router", "experiments"}

"""Settings: what is wrong is named, what is right arrives."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.overlay import build, merge, parse_assignment, read_toml
from contracts.errors import ConfigError


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    size: int = 1
    name: str = "x"


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inner: Inner = Inner()
    on: bool = False


def test_later_layers_win_table_by_table() -> None:
    settings = build(Outer, [{"inner": {"size": 2, "name": "a"}}, parse_assignment("inner.size=3")])
    assert settings == Outer(inner=Inner(size=3, name="a"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=true", True), ("a=[1, 2]", [1, 2]), ("a=hello", "hello"), ("a=1.5", 1.5), ("a=", "")],
)
def test_values_are_toml_or_else_strings(text: str, value: object) -> None:
    assert parse_assignment(text) == {"a": value}


@pytest.mark.parametrize("text", ["nothing", "=1", "a..b=1"])
def test_a_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"section\.name=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("layer", "name"),
    [({"inner": {"size": "big"}}, "inner.size"), ({"unknown": 1}, "unknown"), ({"inner": {"sise": 1}}, "sise")],
)
def test_a_wrong_setting_is_named(layer: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        build(Outer, [layer])


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("a = 1\nb = = 2\n")
    with pytest.raises(ConfigError, match=r"p\.toml.*line 2"):
        read_toml(file)
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        read_toml(tmp_path / "nowhere.toml")


def test_merge_leaves_its_arguments_alone() -> None:
    base: dict[str, object] = {"a": {"b": 1}}
    assert merge(base, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert base == {"a": {"b": 1}}

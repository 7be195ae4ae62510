"""Secrets that the router takes from its environment."""

from __future__ import annotations

import pytest

from cli.settings import Settings
from contracts.errors import ConfigError

ENDPOINTS = {"replicas": ["tcp://127.0.0.1:1"]}


@pytest.mark.parametrize("blank", [" ", ",", " , \n"])
def test_a_list_of_api_keys_without_a_key_is_not_taken_for_everybody(
    monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    monkeypatch.setenv("PHASESERVE_API_KEYS", blank)
    with pytest.raises(ConfigError, match="no key in PHASESERVE_API_KEYS"):
        Settings([]).router(fixed=ENDPOINTS)


def test_keys_are_separated_by_commas_and_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASESERVE_API_KEYS", f"{'a' * 16}, {'b' * 16},\n")
    assert Settings([]).router(fixed=ENDPOINTS).api_keys == ("a" * 16, "b" * 16)
    monkeypatch.setenv("PHASESERVE_API_KEYS", "")
    assert Settings([]).router(fixed=ENDPOINTS).api_keys == ()

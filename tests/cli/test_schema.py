"""`phaseserve schema` describes exactly the settings file that the processes read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from cli.main import main
from cli.schema import settings_schema
from cli.settings import SECTIONS


def test_it_is_printed_and_takes_what_the_settings_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    checker = jsonschema.Draft202012Validator(json.loads(capsys.readouterr().out))
    checker.validate({"model": "smollm2-135m", "slo": {"ttft_s": 2}, "cluster": {"fairness": {"weights": {"a": 2.5}}}})
    checker.validate({"transfer": {"ucx": {"fabric": "roce"}}, "kubernetes": {"election": {"enabled": True}}})
    mistakes: list[dict[str, Any]] = [{"slo": {"ttfb_s": 2}}, {"engine": {"threads": "many"}}]
    mistakes += [{"transfer": {"require": "rmda"}}, {"nonsense": {}}]
    for wrong in mistakes:
        assert not checker.is_valid(wrong), wrong


def test_every_section_is_described() -> None:
    schema, definitions = settings_schema()
    assert set(schema["properties"]) == {"model", "admission", *SECTIONS}
    assert all("required" not in part for part in definitions.values()), "what is left out is a default"

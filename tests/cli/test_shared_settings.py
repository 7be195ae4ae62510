"""What both cores must agree on is said once."""

from __future__ import annotations

import pytest

from cli.settings import Settings
from contracts.errors import ConfigError
from contracts.phase import Role

ENDPOINTS = {"replicas": ["tcp://127.0.0.1:1"]}


@pytest.mark.parametrize("section", ["scheduling", "cluster"])
@pytest.mark.parametrize(("name", "value"), [("window_chunking", False), ("max_gap_s", 2.5)])
def test_how_windows_are_cut_is_the_same_for_replicas_and_router(section: str, name: str, value: object) -> None:
    settings = Settings([{section: {name: value}}])
    assert getattr(settings.replica(replica_id="a", role=Role.MIXED).core, name) == value
    assert getattr(settings.router(fixed=ENDPOINTS).cluster, name) == value


def test_two_answers_to_one_question_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"scheduling\.max_gap_s is 1\.0, cluster\.max_gap_s is 2\.0"):
        Settings([{"scheduling": {"max_gap_s": 1.0}, "cluster": {"max_gap_s": 2.0}}])

"""Whose fair share a request is taken from."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from router.config import RouterConfig
from router.share_key import FairShareBy, share_key

SECRET = "sk-very-secret"
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    ("headers", "user", "by", "begins"),
    [
        (BEARER, "u", "api_key", "key:"),
        ({"authorization": f"bearer  {SECRET} "}, "", "api_key", "key:"),
        ({"authorization": "Basic abc"}, "u", "api_key", "user:u"),
        ({"authorization": "Bearer "}, "", "api_key", ""),
        ({}, "u", "api_key", "user:u"),
        (BEARER, "u", "user", "user:u"),
        (BEARER, "", "user", ""),
        (BEARER, "u", "none", ""),
    ],
)
def test_the_key_is_the_api_key_else_the_user(headers: dict[str, str], user: str, by: FairShareBy, begins: str) -> None:
    key = share_key(headers, user, by)
    assert key.startswith(begins)
    assert bool(key) == bool(begins)
    assert SECRET not in key


def test_keys_are_told_apart_and_bounded_in_length() -> None:
    assert share_key(BEARER, "", "api_key") == share_key({"authorization": f"bearer {SECRET}"}, "", "api_key")
    assert share_key(BEARER, "", "api_key") != share_key({"authorization": "Bearer other"}, "", "api_key")
    long_a, long_b = (share_key({}, "x" * 10_000 + end, "user") for end in "ab")
    assert long_a != long_b
    assert len(long_a) < 100
    assert share_key({}, "\ud800", "user").encode() == b"user:?"


def test_a_setting_that_is_not_known_is_named() -> None:
    with pytest.raises(ConfigError, match="fair_share_by"):
        RouterConfig(model="m", replicas=("tcp://a:1",), fair_share_by="ip")  # type: ignore[arg-type]

"""Prefill and decode pools on the command line: which mixes there are, and that the fleet's secret stays off it."""

from __future__ import annotations

import json

import pytest

from cli.doctor_pd import OUTPUT_TOKENS, prompts, wire_bytes
from cli.http_client import ServerError, sample_of
from cli.settings import Settings
from cli.up import fleet_defaults, parse, roles
from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.phase import Role
from replica.config import SECRET_VARIABLE, ReplicaConfig, read_config, without_secret

SECRET = "a secret of the whole fleet"


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


def test_any_mix_of_roles() -> None:
    words = ["--prefill", "1", "--decode", "2", "--mixed", "1", "--alternating", "1"]
    assert roles(parse(words)) == {
        "r0": Role.ALTERNATING,
        "r1": Role.MIXED,
        "r2": Role.PREFILL,
        "r3": Role.DECODE,
        "r4": Role.DECODE,
    }


@pytest.mark.parametrize("words", [["--prefill", "1"], ["--decode", "1", "--mixed", "2"]])
def test_one_pool_alone_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        roles(parse(words))


def test_a_replica_that_hands_over_needs_a_secret() -> None:
    with pytest.raises(ConfigError, match=SECRET_VARIABLE):
        Settings([]).replica(replica_id="r0", role=Role.PREFILL)
    assert not Settings([]).replica(replica_id="r0", role=Role.MIXED).hands_over


def test_the_secret_goes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings([{"transfer": {"secret": SECRET, "chunk_bytes": 4096}}])
    config = settings.replica(replica_id="r0", role=Role.DECODE)
    text, environment = without_secret(config)
    assert SECRET not in text
    assert environment == {SECRET_VARIABLE: SECRET}
    with pytest.raises(ConfigError):
        read_config(text)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    assert read_config(text) == config


def test_numbers_as_keys_survive_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON and TOML know no keys but text."""
    settings = Settings([{"transfer": {"secret": SECRET, "faults": {"on_put": {"3": "corrupt"}}}}])
    config = settings.replica(replica_id="r0", role=Role.DECODE)
    assert config.transfer.faults.on_put == {3: "corrupt"}
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    assert read_config(without_secret(config)[0]) == config


def test_a_replica_that_does_not_hand_over_is_told_no_secret() -> None:
    config = Settings([{"transfer": {"secret": SECRET}}]).replica(replica_id="r0", role=Role.MIXED)
    text, environment = without_secret(config)
    assert environment == {}
    assert read_config(text).transfer.secret == ""


def test_a_fleet_on_one_machine_has_a_secret_and_no_open_port() -> None:
    ours = fleet_defaults({})
    assert len(ours["secret"]) >= 32
    assert ours["secret"] != fleet_defaults({})["secret"]
    assert ours["host"] == "127.0.0.1"
    assert fleet_defaults({"secret": SECRET, "device": "eth1"}) == {}
    assert "host" not in fleet_defaults({"require": "rdma"})


def test_any_role_may_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    config = Settings([{"transfer": {"enabled": True}}]).replica(replica_id="r0", role=Role.ALTERNATING)
    assert config.hands_over
    text, environment = without_secret(config)
    assert json.loads(text)["transfer"]["enabled"] is True
    assert environment == {SECRET_VARIABLE: SECRET}
    assert isinstance(read_config(text), ReplicaConfig)


def test_a_wrong_transfer_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"transfer: .*transprot"):
        Settings([{"transfer": {"transprot": "tcp"}}]).replica(replica_id="r0", role=Role.MIXED)


def test_the_doctors_prompts_share_no_block_and_fit() -> None:
    asked = prompts(1000, 300)
    assert [len(prompt) for prompt in asked] == [40, 256, 300 - OUTPUT_TOKENS]
    assert len({tuple(prompt[:16]) for prompt in asked}) == 3
    assert all(0 <= token < 1000 for prompt in asked for token in prompt)


def test_what_must_cross_is_whole_blocks_of_every_layer() -> None:
    layout = KVLayout(num_layers=3, num_kv_heads=2, head_dim=8, block_size=16, dtype="float32")
    assert wire_bytes(layout, [[0] * 16, [0] * 17]) == 3 * (2 * 2 * 16 * 8 * 4) * 3


def test_a_sample_is_found_by_its_labels() -> None:
    text = '# HELP x y\nx_total{replica="r0"} 3.0\nx_total{peer="p",replica="r1"} 4.0\nx_total_more{replica="r1"} 5.0\n'
    assert sample_of(text, "x_total", {"replica": "r1"}) == 4.0
    with pytest.raises(ServerError, match="x_total"):
        sample_of(text, "x_total", {"replica": "r2"})

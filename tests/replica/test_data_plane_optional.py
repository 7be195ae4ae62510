"""Who has a data plane: whoever must, and where roles may change whoever can."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import ConfigError
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from contracts.views import ReplicaIdentity
from kvtransfer.config import TransferConfig
from replica.config import ReplicaConfig
from replica.data_plane import data_plane

SECRET = TransferConfig(secret="a secret of the whole fleet", host="127.0.0.1")


class EngineWithoutMemory:
    """Its KV lies where the host cannot send it from."""

    kv_memory = None
    num_blocks = 8
    device = "elsewhere"


def identity() -> ReplicaIdentity:
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
    model = ModelSpec(
        name="m", family="llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, rms_norm_eps=1e-5, rope_theta=1e4, max_context=64, tie_word_embeddings=True,
    )  # fmt: skip
    fingerprint = Fingerprint(model_digest="d", layout=layout)
    return ReplicaIdentity(
        replica_id="r0", incarnation="i", version="0", model=model, fingerprint=fingerprint, num_blocks=8,
        max_running=8, max_waiting=8,
    )  # fmt: skip


async def test_one_that_cannot_serves_without(caplog: pytest.LogCaptureFixture) -> None:
    config = ReplicaConfig(replica_id="r0", role=Role.MIXED, transfer=SECRET, roles_may_change=True)
    engine: Any = EngineWithoutMemory()
    async with data_plane(config, engine, identity()) as (told, transfer):
        assert (told.data_endpoints, transfer) == ((), None)
    assert "keeps to the roles alternating and mixed" in caplog.text


@pytest.mark.parametrize(("role", "enabled"), [(Role.DECODE, False), (Role.MIXED, True)])
async def test_one_that_must_does_not_start_without(role: Role, enabled: bool) -> None:
    transfer = TransferConfig(secret=SECRET.secret, enabled=enabled)
    config = ReplicaConfig(replica_id="r0", role=role, transfer=transfer, roles_may_change=True)
    engine: Any = EngineWithoutMemory()
    with pytest.raises(ConfigError, match="elsewhere"):
        async with data_plane(config, engine, identity()):
            pass


def test_roles_that_may_change_need_the_secret() -> None:
    with pytest.raises(ConfigError, match="secret"):
        ReplicaConfig(replica_id="r0", role=Role.MIXED, roles_may_change=True)
    assert not ReplicaConfig(replica_id="r0", role=Role.MIXED).hands_over

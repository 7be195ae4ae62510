"""A pod that comes back under its name at another address, before anybody saw the old one end (its node died)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from contracts import wire
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase, Role
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from router.config import RouterConfig
from router.fleet import Fleet
from router.metrics import RouterMetrics
from router.static_discovery import StaticDiscovery
from scheduling.cluster_core import ClusterCore
from scheduling.config import ClusterCoreConfig

OLD, NEW = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
SHAPE: dict[str, Any] = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 16, "num_layers": 1, "num_heads": 1}
SPEC = ModelSpec(
    name="tiny",
    family="fake",
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_context=64,
    tie_word_embeddings=True,
    **SHAPE,
)
FINGERPRINT = Fingerprint(
    model_digest="d", layout=KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
)
IDENTITY = ReplicaIdentity(
    replica_id="pool-0",
    incarnation="1",
    version="0",
    model=SPEC,
    fingerprint=FINGERPRINT,
    num_blocks=9,
    max_running=4,
    max_waiting=4,
)
IDLE: dict[str, Any] = dict.fromkeys(("waiting", "waiting_tokens", "running", "acked_submit_index", "steps_done"), 0)
IDLE |= dict.fromkeys(("lease_left_s", "oldest_waiting_s", "backlog_s"), 0.0)
IDLE |= dict.fromkeys(("slack_mean_s", "decode_step_s", "step_age_s"), 0.0)
VIEW = ReplicaView(
    replica_id="pool-0",
    incarnation="1",
    role=Role.MIXED,
    phase=Phase.DECODE,
    draining=False,
    slack_quantiles_s=(),
    free_blocks=9,
    num_blocks=9,
    block_size=16,
    cost=StepCost(a0=0.01, a1=1e-4, b0=0.0, b1=0.0, b2=0.0, b3=1e-4),
    **IDLE,
)


def welcome(incarnation: str) -> wire.Welcome:
    identity = msgspec.structs.replace(IDENTITY, incarnation=incarnation)
    return wire.Welcome(identity=identity, view=msgspec.structs.replace(VIEW, incarnation=incarnation))


@pytest.mark.parametrize("still_found", [True, False])
async def test_the_new_address_counts_once_the_old_one_is_no_longer_found(still_found: bool) -> None:
    config = RouterConfig(model="m", discovery="kubernetes")
    core = ClusterCore(ClusterCoreConfig())
    table: Any = None  # no text is made here
    fleet = Fleet(config, core, SPEC, table, RouterMetrics(), StaticDiscovery(()))
    fleet.links.found([OLD])
    old = next(iter(fleet.links))
    assert fleet.joined(old, welcome("1")) is None
    fleet.links.found([OLD, NEW] if still_found else [NEW])
    new = next(link for link in fleet.links if link.endpoint == NEW)
    refusal = fleet.joined(new, welcome("2"))
    if still_found:
        assert refusal == "another endpoint already is replica pool-0"
        assert (old.replica_id, new.replica_id) == ("pool-0", None)
    else:
        assert refusal is None
        assert (old.replica_id, new.replica_id) == (None, "pool-0")
        identity = fleet.identity_of("pool-0")
        assert identity is not None
        assert identity.incarnation == "2"
        assert [replica.incarnation for replica in core.snapshot(0.0).replicas] == ["2"]
    running = asyncio.create_task(fleet.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])

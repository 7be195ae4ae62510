"""Shared builders of scheduling tests."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import ClientRequestArrived, ReplicaJoined
from contracts.handoff import LinkView
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase, Role
from contracts.request import Slo
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from scheduling.cluster_core import ClusterCore
from scheduling.config import ClusterCoreConfig


class ClusterBuilder:
    """Values for cluster tests with easy numbers: prefill takes 1 ms a token, a decode step 10 ms."""

    cost = StepCost(a0=0.0, a1=0.001, b0=0.0, b1=0.0, b2=0.0, b3=0.009)
    spec = ModelSpec(
        name="tiny",
        family="llama",
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_context=65_536,
        tie_word_embeddings=True,
    )
    layout = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")

    def identity(self, replica_id: str, incarnation: str = "1", **changes: Any) -> ReplicaIdentity:
        """The identity of a replica with room for 64 running and 256 waiting sequences."""
        values: dict[str, Any] = {
            "replica_id": replica_id,
            "incarnation": incarnation,
            "version": "0",
            "model": self.spec,
            "fingerprint": Fingerprint(model_digest="d", layout=self.layout),
            "num_blocks": 1000,
            "max_running": 64,
            "max_waiting": 256,
        }
        return ReplicaIdentity(**(values | changes))

    def view(self, replica_id: str, incarnation: str = "1", slack: float | None = None, **changes: Any) -> ReplicaView:
        """The view of an idle alternating replica; `slack` gives it one running stream with that slack."""
        values: dict[str, Any] = {
            "replica_id": replica_id,
            "incarnation": incarnation,
            "role": Role.ALTERNATING,
            "phase": Phase.DECODE,
            "draining": False,
            "lease_left_s": 0.0,
            "waiting": 0,
            "waiting_tokens": 0,
            "oldest_waiting_s": 0.0,
            "backlog_s": 0.0,
            "running": 0 if slack is None else 1,
            "slack_quantiles_s": () if slack is None else (slack,) * 11,
            "slack_mean_s": 0.0 if slack is None else slack,
            "decode_step_s": 0.0 if slack is None else 0.01,
            "free_blocks": 1000,
            "num_blocks": 1000,
            "block_size": 16,
            "cost": self.cost,
            "acked_submit_index": 0,
            "steps_done": 0,
            "step_age_s": 0.0,
        }
        return ReplicaView(**(values | changes))

    def link(self, peer_id: str, bytes_per_s: float | None = 1e6, **changes: Any) -> LinkView:
        """A measured link without spread, age or latency to the first incarnation of a peer."""
        values: dict[str, Any] = {"peer_id": peer_id, "peer_incarnation": "1", "bytes_per_s": bytes_per_s}
        return LinkView(**(values | changes))

    def pools(self, core: ClusterCore, prefill: str, decode: str, bytes_per_s: float | None = 1e6) -> ClusterCore:
        """Prefill and decode replicas join, one for each letter, every pair linked; all idle, at time 0."""
        links = tuple(self.link(peer, bytes_per_s) for peer in decode)
        for name in prefill:
            core.handle(self.joined(name, role=Role.PREFILL, links=links), 0.0)
        for name in decode:
            core.handle(self.joined(name, role=Role.DECODE), 0.0)
        return core

    def joined(self, replica_id: str, incarnation: str = "1", **changes: Any) -> ReplicaJoined:
        """A replica that joins with `view(**changes)`."""
        view = self.view(replica_id, incarnation, **changes)
        return ReplicaJoined(self.identity(replica_id, incarnation, num_blocks=view.num_blocks), view)

    def arrived(self, request_id: str, prompt_tokens: int = 100, **changes: Any) -> ClientRequestArrived:
        """A request of `prompt_tokens` ms of prefill, with targets of 1 s and 0.1 s."""
        values: dict[str, Any] = {"max_tokens": 32, "slo": Slo(ttft_s=1.0, tpot_s=0.1)}
        return ClientRequestArrived(request_id=request_id, prompt_tokens=prompt_tokens, **(values | changes))

    def core(self, *replicas: str, **settings: Any) -> ClusterCore:
        """A core at time 0 with these replicas, alternating and idle."""
        core = ClusterCore(ClusterCoreConfig(**settings))
        for replica_id in replicas:
            core.handle(self.joined(replica_id), 0.0)
        return core


@pytest.fixture(scope="session")
def cluster() -> ClusterBuilder:
    """Builds cores, views and requests for cluster tests."""
    return ClusterBuilder()

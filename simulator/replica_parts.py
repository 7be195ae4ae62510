"""What a simulated replica process is made of, and what it says about itself."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from contracts.views import ReplicaIdentity, StepCost
from scheduling.config import ReplicaCoreConfig
from simulator.shared_cores import Steps
from simulator.timeline import Timeline
from simulator.transfers import TRANSPORT


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What a replica process is made of."""

    identity: ReplicaIdentity
    role: Role
    config: ReplicaCoreConfig
    layout: KVLayout
    believed: StepCost
    steps: Steps
    heartbeat_s: float
    turn_s: float = 0.0
    timeline: Timeline | None = None


def with_depth(config: ReplicaCoreConfig, stages: int) -> ReplicaCoreConfig:
    """`config` for an engine of so many stages: a batch in flight for each, or more if it says so."""
    if stages <= config.pipeline_depth:
        return config
    return msgspec.structs.replace(config, pipeline_depth=stages)


def identity_of(
    replica_id: str,
    incarnation: int,
    spec: ModelSpec,
    layout: KVLayout,
    num_blocks: int,
    config: ReplicaCoreConfig,
    *,
    has_data_plane: bool = True,
) -> ReplicaIdentity:
    """What the process says about itself at the handshake."""
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=f"{replica_id}.{incarnation}",
        version="simulated",
        model=spec,
        fingerprint=Fingerprint(model_digest=spec.digest, layout=layout),
        num_blocks=num_blocks,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        device=TRANSPORT,
        data_endpoints=(f"{TRANSPORT}://{replica_id}",) if has_data_plane else (),
    )

"""What a placement puts on the accounts of its replicas: one leg, or two when another replica computes the prompt."""

from __future__ import annotations

from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import Leg, RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_index import LIST_ALL, WARM, warmest
from scheduling.plan_disaggregated import handoff_tokens
from scheduling.plan_inputs import Ask
from scheduling.plan_predict import blocks_needed, request_prefill_s, sharing_saves_s


def legs_of(
    record: RequestRecord, ask: Ask, target: ReplicaRecord, giver: ReplicaRecord | None, config: ClusterCoreConfig
) -> tuple[Leg, Leg | None]:
    """The leg where the request decodes, and that of the prefill replica if there is one. Both are predictions; the
    record's `prefill_s` becomes that of this placement."""
    record.prefill_s = request_prefill_on(ask, target if giver is None else giver, config)
    blocks = blocks_needed(ask, target.view.block_size)
    if giver is None:
        shared_s = _shared_s(ask, target, config)
        return Leg(record, record.prefill_s, record.prompt_tokens, blocks, shared_s=shared_s), None
    tokens = handoff_tokens(ask, giver.view.block_size)
    prompt_blocks = -(-tokens // giver.view.block_size)
    return (
        Leg(record, 0.0, 0, blocks),
        Leg(
            record,
            record.prefill_s,
            tokens,
            prompt_blocks,
            unsent=record.asked.num_sequences,
            shared_s=_shared_s(ask, giver, config),
        ),
    )


def _shared_s(ask: Ask, replica: ReplicaRecord, config: ClusterCoreConfig) -> float:
    left = ask.prompt_tokens - ask.cached_on(replica.replica_id)
    return sharing_saves_s(replica.view.cost, left, config.prefill_chunk)


def request_prefill_on(ask: Ask, replica: ReplicaRecord, config: ClusterCoreConfig) -> float:
    """Predicted seconds to prefill all sequences of a request on a replica, after what its cache is known to hold."""
    view, cached = replica.view, ask.cached_on(replica.replica_id)
    return request_prefill_s(
        view.cost, ask.prompt_tokens, ask.num_sequences, view.block_size, config.prefill_chunk, cached
    )


def fastest_prefill_s(ask: Ask, fleet: Fleet, config: ClusterCoreConfig) -> float:
    """What its prefill would take where it is done fastest; in a large fleet by the fastest one and those that have
    most of the prompt cached."""
    listed = (
        list(fleet) if len(fleet) <= LIST_ALL else map(fleet.get, {fleet.index.fastest(), *warmest(ask.cached, WARM)})
    )
    able = (replica for replica in listed if replica is not None and not replica.draining)
    return min((request_prefill_on(ask, replica, config) for replica in able), default=0.0)

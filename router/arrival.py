"""A flight as the cluster core hears of it."""

from __future__ import annotations

from contracts.cluster_io import ClientRequestArrived
from contracts.request import Slo
from router.flight import Flight
from scheduling.cluster_core import ClusterCore


def arrival_of(flight: Flight, slo: Slo, core: ClusterCore) -> ClientRequestArrived:
    """The event for a new flight. Its prompt's blocks are named only as far as `core` knows a replica that holds them;
    a prompt whose log probabilities are asked for is computed whole wherever it runs, so it has no names."""
    generation = flight.call.generation
    whole = generation.sampling.prompt_logprobs is not None
    return ClientRequestArrived(
        request_id=flight.request_id,
        prompt_tokens=len(flight.token_ids),
        max_tokens=generation.max_tokens[flight.prompt_index],
        num_sequences=generation.n,
        slo=slo,
        priority=generation.priority,
        layout=generation.layout,
        on_unavailable=generation.on_unavailable,
        key=generation.key,
        prefix=None if whole else core.name_prompt(flight.token_ids),
    )

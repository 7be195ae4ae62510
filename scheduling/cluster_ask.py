"""A client request as the question that plans answer."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.cluster_availability import demanded_layout, may_fall_back
from scheduling.cluster_requests import RequestRecord
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask


def ask_of(
    record: RequestRecord,
    now: float,
    expected_output: int,
    cached: Mapping[str, int],
    config: ClusterCoreConfig,
    *,
    yields: bool = False,
) -> Ask:
    """The request as it asks for a place at `now`, with outputs of `expected_output` tokens in mind; `cached` are the
    tokens of its prompt that replicas hold. `yields`: more urgent ones need the slack there is."""
    asked = record.asked
    return Ask(
        now=now,
        prompt_tokens=record.prompt_tokens,
        num_sequences=asked.num_sequences,
        reserve_tokens=max(1, min(asked.max_tokens - record.tokens_sent, expected_output)),
        slo=asked.slo,
        waited_s=now - record.due_from,
        yields=yields,
        layout=demanded_layout(asked.layout, config),
        may_fall_back=may_fall_back(asked, config),
        avoid=record.avoid,
        avoid_pairs=record.avoid_pairs,
        no_handoff=record.no_handoff,
        cached=cached,
    )

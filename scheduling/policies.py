"""A whole policy by the name of its admission rule: the role it is about and the settings of both cores.

For experiments, so that ours and the published ones run in the same harness and every comparison is fair. A published
policy gets what its system did and nothing of ours that would change it:

- EcoServe's: whole prompts once begun, no bound on the gap between two tokens but the window's own, which the placement
  keeps within the TTFT target. Its choice among replicas is in `scheduling.plan_published`.
- `prefill_priority`: no bound on the gap either; that is its known fault. Requests go to the replica with the best
  predicted TTFT at once and queue there. So they do under `sarathi(n)`.

What all share, ours and theirs: the engine and its largest chunk, the order within a replica by priority, KV blocks and
preemption, and refusals when a bounded queue is full.
"""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.phase import Role
from scheduling.admission_rules import Budget, parse_rule
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig

UNBOUNDED_GAP_S = 3600.0
"""`max_gap_s` of those that promise no bound."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`role` of the replicas, and what differs from the defaults in the settings of the two cores."""

    name: str
    role: Role
    cluster: dict[str, Any]
    replica: dict[str, Any]

    def cluster_config(self, base: ClusterCoreConfig | None = None) -> ClusterCoreConfig:
        """`base` (the defaults) with this policy's settings."""
        return msgspec.structs.replace(base or ClusterCoreConfig(), **self.cluster)

    def replica_config(self, base: ReplicaCoreConfig | None = None) -> ReplicaCoreConfig:
        """`base` (the defaults) with this policy's settings."""
        return msgspec.structs.replace(base or ReplicaCoreConfig(), **self.replica)


def policy(name: str) -> Policy:
    """The policy of that admission rule. Raises `ConfigError` for a name that is not known, and says which are."""
    rule = parse_rule(name)
    replica: dict[str, Any] = {"admission": rule.name}
    if rule.greedy or rule.budget is Budget.PREFILL_FIRST:
        replica["max_gap_s"] = UNBOUNDED_GAP_S
    if rule.greedy:
        replica["window_chunking"] = False
    layout = "phased" if rule.role is Role.ALTERNATING else "colocated"
    cluster = replica | {"layout": layout}
    return Policy(name=rule.name, role=rule.role, cluster=cluster, replica=replica)

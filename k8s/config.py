"""What can be set about Kubernetes. Built once at the entry point, checked when built; imports no client."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Role
from k8s.labels import CONTROL_PORT, REPLICA_SELECTOR

Workload = Literal["StatefulSet", "Deployment"]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _require_positive(value: msgspec.Struct, section: str, *names: str) -> None:
    for name in names:
        if not 0.0 < getattr(value, name) < float("inf"):
            raise ConfigError(f"{section}.{name} must be a positive number of seconds", param=f"{section}.{name}")


class ElectionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several routers leads. Times in seconds.

    Another may take the lease `duration_s` after it last saw it renewed; the leader stops work at the latest
    `deadline_s` after its own last renewal, and tries to renew each `retry_s`, which bounds every call, too.
    `identity` names this router (empty: its host name, which in a cluster is the pod's).
    """

    enabled: bool = False
    lease: str = "phaseserve-router"
    identity: str = ""
    duration_s: float = 15.0
    deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        _require_positive(self, "kubernetes.election", "duration_s", "deadline_s", "retry_s")
        if not _NAME.fullmatch(self.lease):
            raise ConfigError(f"{self.lease!r} is no name of a Lease", param="kubernetes.election.lease")
        if not self.duration_s > self.deadline_s >= 3 * self.retry_s:
            told = "duration_s must be greater than deadline_s, and that at least three times retry_s"
            raise ConfigError(told, param="kubernetes.election.deadline_s")


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload whose size may be changed, within `min_replicas` and `max_replicas`. `role` is what its pods start
    with. Its pods are known by their names, which begin with the workload's."""

    workload: str
    kind: Workload = "StatefulSet"
    role: Role = Role.ALTERNATING
    min_replicas: int = 1
    max_replicas: int = 8

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.workload):
            raise ConfigError(f"{self.workload!r} is no name of a workload", param="kubernetes.scaling.pools")
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            told = f"{self.workload}: 0 <= min_replicas <= max_replicas and 1 <= max_replicas must hold"
            raise ConfigError(told, param="kubernetes.scaling.pools")


class ScalingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Following the fleet's proposals. Times in seconds.

    After a change of a pool's size, whoever made it, nothing is changed for `cooldown_s`. That is to be less than the
    time between two proposals (`MacroConfig.propose_every_s`, 60 s): one that comes just as the last change has been
    made would be refused, and with it every second one. A replica that is to go is drained first, for `drain_s` at
    most; then the pod's own drain on SIGTERM takes over. A proposal is forgotten after `keep_s`.
    """

    enabled: bool = False
    pools: tuple[PoolConfig, ...] = ()
    cooldown_s: float = 50.0
    drain_s: float = 120.0
    keep_s: float = 30.0
    every_s: float = 1.0

    def __post_init__(self) -> None:
        _require_positive(self, "kubernetes.scaling", "cooldown_s", "drain_s", "keep_s", "every_s")
        names = [pool.workload for pool in self.pools]
        if self.enabled and not names:
            raise ConfigError("scaling needs at least one pool", param="kubernetes.scaling.pools")
        if len(set(names)) != len(names):
            raise ConfigError("two pools name the same workload", param="kubernetes.scaling.pools")


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the API server is and what is asked of it. Times in seconds.

    Without `kubeconfig` the pod's own service account is used, outside a cluster $KUBECONFIG or ~/.kube/config. With
    no `namespace` it is that of the credentials. `selector` is the label selector of the EndpointSlices. A watch is
    ended by the server after `watch_s`, and given up `slack_s` later: so long a dead connection goes unnoticed. All is
    listed anew every `relist_s`. After errors it waits longer and longer, `max_backoff_s` at most.
    With `label_roles` the leader keeps each pod's role label at the role that its replica has.
    """

    kubeconfig: str = ""
    namespace: str = ""
    selector: str = REPLICA_SELECTOR
    port_name: str = CONTROL_PORT
    watch_s: float = 40.0
    slack_s: float = 8.0
    relist_s: float = 600.0
    max_backoff_s: float = 5.0
    label_roles: bool = True
    election: ElectionConfig = ElectionConfig()
    scaling: ScalingConfig = ScalingConfig()

    def __post_init__(self) -> None:
        _require_positive(self, "kubernetes", "watch_s", "slack_s", "relist_s", "max_backoff_s")
        if not self.selector:
            raise ConfigError("selector is empty: every EndpointSlice would be meant", param="kubernetes.selector")
        if not self.port_name:
            raise ConfigError("port_name is empty", param="kubernetes.port_name")

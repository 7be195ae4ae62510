"""A run as one value: fleet, links, settings of both cores, workload, changes, seed."""

from __future__ import annotations

import math

import msgspec

from contracts.errors import ConfigError
from contracts.kv import DTYPE_BYTES, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.changes import Add, Change, check_names
from simulator.cost import CostModel, Fitted
from simulator.observer import RouterTimes
from simulator.workload import Workload

_SHORTEST_S = 1e-6
MOST_REPLICAS = 100_000
MOST_REQUESTS = 100_000_000
"""Of a run, as many as its rate lets expect or as it is told."""
MOST_DURATION_S = 366 * 86_400.0


class KVShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV of one token: `2 * num_layers * num_kv_heads * head_dim` values, and how it is cut into blocks."""

    num_layers: int = 30
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"kv.{name} must be at least 1", param=f"kv.{name}")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"kv.dtype must be one of {', '.join(DTYPE_BYTES)}", param="kv.dtype")

    @property
    def layout(self) -> KVLayout:
        """As the cores want it."""
        return KVLayout(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=self.dtype,
        )


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` replicas of one kind. Ids are `<name>-0`, `<name>-1` ...; `name` is the role's unless given.

    `cost` says how long a step takes, `noise` how widely it spreads (standard deviation of the logarithm), `turn_s`
    what the process takes from the end of a step to the begin of the next. Links carry `link_bytes_per_s` each way.
    `num_blocks` KV blocks, `max_context` tokens of prompt and output. Replicas with the same `machine` (any name) share
    its cores: while another of them computes, a step takes what `crowded` says. A core starts from what it finds at
    load: `believed`, or what a profile of `cost` would find.
    """

    role: Role
    cost: CostModel
    count: int = 1
    name: str = ""
    noise: float = 0.0
    kv: KVShape = KVShape()
    num_blocks: int = 4096
    max_context: int = 32_768
    link_bytes_per_s: float = 1.25e9
    turn_s: float = 0.0
    machine: str = ""
    crowded: CostModel | None = None
    believed: Fitted | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("count", "num_blocks", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"fleet.{name} must be at least 1", param=f"fleet.{name}")
        for name in ("noise", "link_bytes_per_s", "turn_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"fleet.{name} must not be negative", param=f"fleet.{name}")

    @property
    def prefix(self) -> str:
        """What the ids of its replicas begin with."""
        return self.name or self.role.value

    @property
    def spec(self) -> ModelSpec:
        """The model as far as scheduling knows it."""
        kv = self.kv
        return ModelSpec(
            name="simulated",
            family="simulated",
            vocab_size=2**32,
            hidden_size=kv.num_kv_heads * kv.head_dim,
            intermediate_size=4 * kv.num_kv_heads * kv.head_dim,
            num_layers=kv.num_layers,
            num_heads=kv.num_kv_heads,
            num_kv_heads=kv.num_kv_heads,
            head_dim=kv.head_dim,
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            max_context=self.max_context,
            tie_word_embeddings=True,
            digest="simulated",
        )


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Follow the core's proposals: new replicas of group `group` serve `provision_s` after one, at most `most` in all;
    at least `least` stay when some are to go. Off with `most` = 0."""

    most: int = 0
    least: int = 1
    group: int = 0
    provision_s: float = 1.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        if self.most < 0 or not 0 <= self.least <= max(self.least, self.most) or not 0.0 <= self.provision_s < math.inf:
            raise ConfigError("scaling: most, least and provision_s must not be negative", param="scaling")


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Requests arrive for `duration_s` seconds (or as many as the workload says), then what is under way ends.
    The first comes after `start_s`, when the fleet has joined and its links are up; all times count from before that.

    `scheduling` and `cluster` are the settings of the two cores, as in `phaseserve up`. A view goes out every
    `heartbeat_s`, and earlier when something changed. `latency_s` is that of the network, one way. The first `warmup_s`
    are left out of the statistics; attainment over time is counted in windows of `window_s`. A run that has not ended
    `patience_s` after its last arrival is an error. There are at most `MOST_REPLICAS`, those added later included,
    `MOST_REQUESTS` and `MOST_DURATION_S`; a change names no replica that is not there at its moment.
    """

    fleet: tuple[Group, ...]
    workload: Workload = Workload()
    duration_s: float = 60.0
    seed: int = 0
    scheduling: ReplicaCoreConfig = ReplicaCoreConfig()
    cluster: ClusterCoreConfig = ClusterCoreConfig()
    changes: tuple[Change, ...] = ()
    scaling: Scaling = Scaling()
    router: RouterTimes = RouterTimes()
    heartbeat_s: float = 0.1
    start_s: float = 1.0
    latency_s: float = 0.0001
    warmup_s: float = 0.0
    window_s: float = 10.0
    patience_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        if not self.fleet:
            raise ConfigError("fleet must hold one group of replicas or more", param="fleet")
        names = [group.prefix for group in self.fleet]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two groups of the fleet are called {twice[0]}: give them names", param="fleet")
        for name in ("duration_s", "heartbeat_s", "window_s", "patience_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be positive", param=name)
        if self.heartbeat_s < _SHORTEST_S:
            raise ConfigError(f"heartbeat_s must be at least {_SHORTEST_S:g}", param="heartbeat_s")
        for name in ("latency_s", "warmup_s", "start_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must not be negative", param=name)
        for change in self.changes:
            _check_group(self.fleet, getattr(change, "group", 0), "changes")
        _check_group(self.fleet, self.scaling.group, "scaling")
        self._check_size()
        growing = self.fleet[self.scaling.group].prefix if self.scaling.most else ""
        check_names(self.changes, [(group.prefix, group.count) for group in self.fleet], growing)

    def _check_size(self) -> None:
        added = sum(change.count for change in self.changes if isinstance(change, Add))
        replicas = max(sum(group.count for group in self.fleet) + added, self.scaling.most)
        if replicas > MOST_REPLICAS:
            raise ConfigError(f"{replicas:,} replicas: a run has at most {MOST_REPLICAS:,}", param="fleet")
        if self.duration_s > MOST_DURATION_S:
            raise ConfigError(
                f"duration_s is {self.duration_s:g}: a run has at most {MOST_DURATION_S:g} s", param="duration_s"
            )
        requests = self.workload.expected(self.duration_s)
        if requests > MOST_REQUESTS:
            raise ConfigError(f"about {requests:,.0f} requests: a run has at most {MOST_REQUESTS:,}", param="workload")


def _check_group(fleet: tuple[Group, ...], group: int, where: str) -> None:
    if not 0 <= group < len(fleet):
        raise ConfigError(f"{where}.group: there is no group {group} of the fleet", param=f"{where}.group")

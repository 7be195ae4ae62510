"""A run as one value: fleet, links, settings of both cores, workload, changes, seed."""

from __future__ import annotations

import msgspec

from contracts.errors import ConfigError
from contracts.kv import DTYPE_BYTES, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.bounds import (
    COUNTLESS,
    LONGEST_S,
    LONGEST_STEP_S,
    MOST_BYTES_S,
    SHORTEST_S,
    bound,
    bound_all,
    check_name,
)
from simulator.changes import Add, Change, check_names
from simulator.cost import CostModel, Fitted, check_duration
from simulator.lengths import MOST_TOKENS
from simulator.observer import RouterTimes
from simulator.workload import MOST_REQUESTS, Workload

MOST_REPLICAS = 100_000
MOST_BLOCKS = 100_000_000
"""Of KV on one replica, whose core keeps a list of them."""
_MOST_NOISE = 2.0
_LONGEST_LATENCY_S = 60.0
_LONGEST_BEAT_S = 3600.0
_KV_MOST = {"num_layers": 10_000, "num_kv_heads": 10_000, "head_dim": 100_000, "block_size": 100_000}


class KVShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV of one token: `2 * num_layers * num_kv_heads * head_dim` values, and how it is cut into blocks."""

    num_layers: int = 30
    num_kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name, most in _KV_MOST.items():
            bound(f"kv.{name}", getattr(self, name), 1, most)
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
        check_name("fleet.name", self.name)
        bound_all(self, "fleet.", "count", least=1, most=COUNTLESS)
        bound_all(self, "fleet.", "num_blocks", least=1, most=MOST_BLOCKS)
        bound_all(self, "fleet.", "max_context", least=1, most=2 * MOST_TOKENS)
        bound_all(self, "fleet.", "noise", most=_MOST_NOISE)
        bound_all(self, "fleet.", "link_bytes_per_s", most=MOST_BYTES_S)
        bound_all(self, "fleet.", "turn_s", most=LONGEST_STEP_S)
        for name in ("cost", "crowded", "believed"):
            check_duration(getattr(self, name), f"fleet.{name}")

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
    """Follow the core's proposals: a new replica of group `group` serves `provision_s` after one, at most `most` in
    all; at least `least` stay when one is to go, and the core names which. Off with `most` = 0."""

    most: int = 0
    least: int = 1
    group: int = 0
    provision_s: float = 1.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        bound_all(self, "scaling.", "most", "least", most=COUNTLESS)
        bound_all(self, "scaling.", "provision_s")
        if 0 < self.most < self.least:
            raise ConfigError(
                f"scaling: at most {self.most} replicas, but at least {self.least}", param="scaling.least"
            )


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Requests arrive for `duration_s` seconds (or as many as the workload says), then what is under way ends.
    The first comes after `start_s`, when the fleet has joined and its links are up; all times count from before that.

    `scheduling` and `cluster` are the settings of the two cores, as in `phaseserve up`. A view goes out every
    `heartbeat_s`, and earlier when something changed. `latency_s` is that of the network, one way. The first `warmup_s`
    are left out of the statistics; attainment over time is counted in windows of `window_s`. A run that has not ended
    `patience_s` after its last arrival is an error. There are at most `MOST_REPLICAS`, those added later included, and
    `MOST_REQUESTS`, the last of which comes within a year. A change names no replica that is not there at its moment;
    one whose moment comes after the end of the run does not happen.
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
        if not self.duration_s > 0.0:
            raise ConfigError(f"duration_s must be positive, but is {self.duration_s:g}", param="duration_s")
        bound("seed", self.seed, -(2**63), 2**63 - 1)
        bound("heartbeat_s", self.heartbeat_s, SHORTEST_S, _LONGEST_BEAT_S)
        bound_all(self, "", "window_s", "patience_s", least=SHORTEST_S)
        bound("latency_s", self.latency_s, most=_LONGEST_LATENCY_S)
        bound("start_s", self.start_s, most=_LONGEST_BEAT_S)
        bound("warmup_s", self.warmup_s)
        if not self.workload.num_requests and self.warmup_s >= self.start_s + self.duration_s:
            end_s = self.start_s + self.duration_s
            raise ConfigError(
                f"warmup_s is {self.warmup_s:g}, and requests arrive until {end_s:g} s: none would be counted",
                param="warmup_s",
            )
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
        if self.duration_s > LONGEST_S:
            raise ConfigError(
                f"duration_s is {self.duration_s:g}: a run has at most {LONGEST_S:g} s", param="duration_s"
            )
        requests = self.workload.expected(self.duration_s)
        if requests > MOST_REQUESTS:
            raise ConfigError(f"about {requests:,.0f} requests: a run has at most {MOST_REQUESTS:,}", param="workload")
        last_s = self.workload.span_s()
        if last_s > LONGEST_S:
            raise ConfigError(
                f"{self.workload.num_requests:,} requests would take about {last_s:g} s to arrive: a run has at most"
                f" {LONGEST_S:g} s",
                param="workload",
            )


def _check_group(fleet: tuple[Group, ...], group: int, where: str) -> None:
    if not 0 <= group < len(fleet):
        raise ConfigError(f"{where}.group: there is no group {group} of the fleet", param=f"{where}.group")

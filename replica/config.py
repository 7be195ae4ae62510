"""What can be set about one replica process. Built once at the entry point, checked when built."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from contracts.control_secret import CONTROL_SECRET_VARIABLE, check_control_secret
from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.views import StepCost
from engine.config import EngineConfig
from kvtransfer.auth import MIN_SECRET_CHARS
from kvtransfer.config import TransferConfig
from scheduling.config import ReplicaCoreConfig

EngineKind = Literal["torch", "fake"]
SECRET_VARIABLE = "PHASESERVE_FLEET_SECRET"
"""The environment variable with the fleet's secret: command lines can be read by everybody on the machine."""


class FakeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fake engine: what a step is said to cost (the core starts from it), and whether steps really take that long.

    The default cost is that of SmolLM2-135M on two CPU cores, rounded; the default shape fits its tokenizer. About one
    token in `eos_every` ends its sequence (0: none). `num_layers` to `dtype` make the size of the KV of a token: tiny
    by default, for experiments with links that of the model they stand for. A sequence fails in the step that feeds it
    `failing_token` (-1: none); for tests. When it is first sampled, `first_read_bytes` of its context are checked.
    """

    cost: StepCost = StepCost(a0=0.02, a1=0.002, b0=1e-8, b1=1e-8, b2=2e-7, b3=0.002)
    delays: bool = True
    num_blocks: int = 2048
    block_size: int = 16
    max_context: int = 8192
    vocab_size: int = 49152
    eos_every: int = 0
    failing_token: int = -1
    num_layers: int = 2
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    first_read_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        sizes = ("num_blocks", "block_size", "max_context", "vocab_size", "num_layers", "num_kv_heads", "head_dim")
        for name in (*sizes, "first_read_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"fake.{name} must be at least 1, but is {getattr(self, name)}", param=f"fake.{name}")


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the replica's shell, in seconds unless named otherwise.

    A router that is silent for `router_silence_s`, or does not read `queued_messages` messages, loses its requests.
    While a step runs longer than `step_overdue_s` nothing new is accepted. The process ends when a step takes longer
    than `step_deadline_s` (it cannot be interrupted), and when `max_failed_steps` fail in a row. A drain ends
    unfinished requests by name after `drain_deadline_s`.
    """

    heartbeat_s: float = 0.1
    router_silence_s: float = 5.0
    drain_deadline_s: float = 30.0
    step_overdue_s: float = 10.0
    step_deadline_s: float = 300.0
    max_failed_steps: int = 5
    queued_messages: int = 2000
    max_routers: int = 64

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, but is {getattr(self, name)}", param=name)
        if self.router_silence_s < 2 * self.heartbeat_s:
            raise ConfigError("router_silence_s must be at least two heartbeats", param="router_silence_s")


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica process. `port` 0 takes any free one. With `parent_pid` it ends when that process is gone.
    With a `control_secret` only routers that know it may connect (`contracts.control_secret`).
    On `health_port` (None: not at all, 0: any free one) of `host` it answers the probes of a supervisor over HTTP.

    A prefill or decode replica has a data plane, others when `transfer.enabled`: then the fleet's secret is needed.
    `roles_may_change`: it may become a prefill or decode replica later, so it has one from the start if it can; where
    it cannot (KV that the host cannot send from, a transport that does not start) it serves all the same without.
    Raises `ConfigError` naming the setting.
    """

    replica_id: str
    host: str = "127.0.0.1"
    port: int = 0
    role: Role = Role.ALTERNATING
    kind: EngineKind = "torch"
    engine: EngineConfig = EngineConfig()
    fake: FakeConfig = FakeConfig()
    core: ReplicaCoreConfig = ReplicaCoreConfig()
    loop: LoopConfig = LoopConfig()
    transfer: TransferConfig = TransferConfig()
    roles_may_change: bool = False
    health_port: int | None = None
    control_secret: str = ""
    parent_pid: int = 0

    @property
    def hands_over(self) -> bool:
        """Whether this replica gives KV away or takes it in, now or in another role."""
        return self.must_hand_over or self.roles_may_change

    @property
    def must_hand_over(self) -> bool:
        """Whether it does not start when it can do neither."""
        return self.transfer.enabled or self.role in (Role.PREFILL, Role.DECODE)

    def __post_init__(self) -> None:
        if not self.replica_id or not self.replica_id.isprintable():
            raise ConfigError(f"replica_id must be printable text, but is {self.replica_id!r}", param="replica_id")
        if not self.host:
            raise ConfigError("host is empty", param="host")
        for name, port in (("port", self.port), ("health_port", self.health_port or 0)):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{name} must lie between 0 and 65535, but is {port}", param=name)
        check_control_secret(self.control_secret)
        if self.core.pipeline_depth > 1:
            raise ConfigError(
                f"scheduling.pipeline_depth is {self.core.pipeline_depth}, but no engine here is a pipeline of stages:"
                " a live replica runs one step at a time (only `phaseserve simulate` knows deeper ones)",
                param="scheduling.pipeline_depth",
            )
        if self.hands_over and len(self.transfer.secret) < MIN_SECRET_CHARS:
            raise ConfigError(
                f"a replica that hands KV over needs the fleet's secret, at least {MIN_SECRET_CHARS} characters, the"
                f" same for all: set {SECRET_VARIABLE} in the environment, or transfer.secret in a file",
                param="transfer.secret",
            )


def read_config(source: str) -> ReplicaConfig:
    """A configuration from JSON text (it begins with a brace) or from a .json or .toml file, with the fleet's secret
    from the environment when there is one. Raises `ConfigError`."""
    try:
        return msgspec.convert(with_secret(_read_tables(source)), ReplicaConfig, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"not a replica configuration: {error}") from error


def with_secret(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a replica with the environment's secrets in place of theirs, where there are any."""
    if control_secret := os.environ.get(CONTROL_SECRET_VARIABLE):
        tables = {**tables, "control_secret": control_secret}
    secret = os.environ.get(SECRET_VARIABLE)
    transfer = tables.get("transfer", {})
    if not secret or not isinstance(transfer, dict):
        return tables
    return {**tables, "transfer": {**transfer, "secret": secret}}


def without_secret(config: ReplicaConfig) -> tuple[str, dict[str, str]]:
    """The configuration as JSON text for a command line, and the environment that holds the rest of it."""
    tables = msgspec.to_builtins(config)
    secrets = {CONTROL_SECRET_VARIABLE: tables.pop("control_secret")}
    secret = tables["transfer"].pop("secret")
    if config.hands_over:
        secrets[SECRET_VARIABLE] = secret
    return msgspec.json.encode(tables).decode(), {name: value for name, value in secrets.items() if value}


def _read_tables(source: str) -> dict[str, Any]:
    try:
        if source.lstrip().startswith("{"):
            return msgspec.json.decode(source, type=dict[str, Any])
        path = Path(source)
        if path.suffix == ".toml":
            return tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not a replica configuration: {error}") from error

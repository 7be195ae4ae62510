"""What can be set about moving KV between replicas. Built once at the entry point, checked when built."""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.errors import ConfigError
from kvtransfer.auth import MIN_SECRET_CHARS
from kvtransfer.ucx_settings import UcxSettings

TransportName = Literal["auto", "tcp", "ucx", "nixl", "cma", "loopback"]
Require = Literal["any", "rdma"]
FaultName = Literal["drop", "truncate", "corrupt", "reorder", "repeat", "fail", "stall", "die"]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Faults that a sender makes on purpose, from `seed`, over any transport; all off by default. For tests.

    Each put is delayed by `delay_s` and paced to `bytes_per_s` (0: no limit). Shares (0 to 1) of the puts: `drop` never
    arrive, `truncate` arrive short, `corrupt` with their bytes rotated, `reorder` after a later one, `repeat` twice.
    After `stall_after_puts` puts (0: never) nothing moves any more; after `die_after_puts` the connection breaks.
    `on_put`: what happens to the k-th put, counted from 1 over all connections; here also `fail` (that put raises, and
    the connection is closed), `stall` and `die`. `spare_probes`: probes and self-tests are neither hit nor counted.
    """

    seed: int = 0
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    drop: float = 0.0
    truncate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    repeat: float = 0.0
    stall_after_puts: int = 0
    die_after_puts: int = 0
    on_put: dict[int, FaultName] = {}
    spare_probes: bool = True

    def __post_init__(self) -> None:
        for name in ("drop", "truncate", "corrupt", "reorder", "repeat"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"faults.{name} is a share of the puts, 0 to 1", param=f"faults.{name}")
        for name in ("delay_s", "bytes_per_s", "stall_after_puts", "die_after_puts"):
            if getattr(self, name) < 0:
                raise ConfigError(f"faults.{name} must not be negative", param=f"faults.{name}")


class TransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data plane of one replica.

    enabled: start the data plane whatever the role; prefill and decode replicas always have one.
    transport: `auto` takes the best that both sides have and that passes a self-test (`kvtransfer.choose`); a name
        takes only that one. `loopback` stays inside one process and is for tests.
    require: `rdma` refuses every link that is not RDMA, instead of being slow unnoticed.
    host: the address to listen on and to tell others; empty: chosen from `device`, or from the route that is used.
    port: of the control connection; 0: any. Bulk endpoints always take any port.
    device: network interface whose address to advertise, empty: any.
    secret: what the replicas of one fleet know and nobody else does; each connection proves it. At least 16 characters.
    tls_cert, tls_key, tls_ca: files (PEM); all or none. They encrypt the control connection and the `tcp` transport;
        no other transport can encrypt, so `auto` becomes `tcp`.
    max_concurrent_transfers: tickets that a sender serves on one link at a time, in order; further ones wait.
    chunk_bytes: largest size of a put. From 1 to 2 MiB on the wire's own cost per message does not matter any more;
        ours, in CPU, still falls a little. Links below 400 MB/s get smaller puts (`kvtransfer.flow`).
    window: puts under way on one link.
    connect_deadline_s: for connecting, handshake and self-test. silence_s: a link silent for so long is dead.
    ucx: settings of UCX, for `ucx` and `nixl`. faults: made on purpose, in tests.
    """

    enabled: bool = False
    transport: TransportName = "auto"
    require: Require = "any"
    host: str = ""
    port: int = 0
    device: str = ""
    secret: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    max_concurrent_transfers: int = 64
    chunk_bytes: int = 4 << 20
    window: int = 8
    connect_deadline_s: float = 5.0
    silence_s: float = 5.0
    ucx: UcxSettings = UcxSettings()
    faults: Faults = Faults()

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.tls_cert)

    def __post_init__(self) -> None:
        for name in ("max_concurrent_transfers", "chunk_bytes", "window", "connect_deadline_s", "silence_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, but is {getattr(self, name)}", param=name)
        if self.chunk_bytes > 1 << 30:
            raise ConfigError("chunk_bytes must be at most 1 GiB", param="chunk_bytes")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be 0 to 65535, but is {self.port}", param="port")
        if self.enabled and len(self.secret) < MIN_SECRET_CHARS:
            raise ConfigError(f"secret must have at least {MIN_SECRET_CHARS} characters", param="secret")
        self._check_tls()
        if self.require == "rdma" and self.transport not in ("auto", "nixl", "ucx"):
            raise ConfigError(f"require = rdma cannot be met by transport = {self.transport}", param="require")
        if self.require == "rdma" and self.ucx.fabric in ("tcp", "shm"):
            raise ConfigError(f"require = rdma cannot be met by ucx.fabric = {self.ucx.fabric}", param="require")

    def _check_tls(self) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if any(files) and not all(files):
            raise ConfigError("tls_cert, tls_key and tls_ca must be given together", param="tls_cert")
        if self.tls and self.transport not in ("auto", "tcp"):
            raise ConfigError(f"transport = {self.transport} cannot encrypt; tls needs tcp or auto", param="transport")
        if self.tls and self.require == "rdma":
            raise ConfigError("RDMA cannot encrypt; tls and require = rdma exclude each other", param="require")

"""The one place for UCX settings: a pure function from a config value to environment variables.

UCX reads its environment when the library is loaded, so the variables are set before `ucxx`, `ucp` or `nixl_cu12` is
imported, and with `setdefault`: what an operator exported wins. Both libraries of one process (ucxx with its own
libucx, NIXL with another) read the same variables.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Literal

import msgspec

from contracts.errors import ConfigError

UcxFabric = Literal["auto", "tcp", "shm", "roce", "infiniband"]

_TLS = {
    # One kernel serves all network namespaces of a host, so its shared memory ignores links and their shaping. Our
    # own `cma` transport serves peers of one host and knows better; UCX keeps to the network unless told.
    "tcp": "tcp",
    "shm": "posix,sysv,cma,self,tcp",
    # `ud` only bootstraps connections of `rc`. Neither tcp nor self, so that a missing fabric fails at start.
    "roce": "rc,ud",
    "infiniband": "rc,ud",
}
_TLS_AUTO_RDMA = "^sm"  # whatever the host has, except shared memory
_SCHEMES = ("", "auto", "put_zcopy", "get_zcopy", "am")


class UcxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set about UCX; empty or None leaves UCX's own default.

    fabric: `auto` uses RDMA devices where the host has them, else TCP, never shared memory. `tcp`: always works.
        `shm`: UCX's own shared memory (NIXL only; ucxx with error handling stays on TCP). `roce` and `infiniband` fail
        at start when the library or the host has no such device: PyPI's libucx is built without it, NIXL's wheel with.
    devices: `UCX_NET_DEVICES`: `eth0`, or `mlx5_0:1` (device:port); several by comma. Needed on multi-homed hosts.
    gid_index: `UCX_IB_GID_INDEX`, RoCE only: the entry of the GID table, -1 chooses a routable RoCE v2 one
        (`kvtransfer.gid`). Wrong entries connect nothing ("retry exceeded").
    traffic_class, service_level: `UCX_IB_TRAFFIC_CLASS` (DSCP << 2) and `UCX_IB_SL`: the lossless class of the fabric.
    rails: `UCX_MAX_RNDV_RAILS`: devices that one large message is striped over. More than 1 needs as many devices.
    rendezvous_bytes: `UCX_RNDV_THRESH`: from this size on messages are announced first and then moved without a copy.
        0: the library's choice (ucxx sets 8192 itself). With any value NIXL's UCX 1.23 copies each write once more on
        TCP, which doubles its CPU.
    rendezvous_scheme: `UCX_RNDV_SCHEME`. Empty: `put_zcopy` on TCP, where UCX's own choice copies twice and is half as
        fast; UCX's own choice (RDMA read or write) on RDMA.
    keepalive_idle_s, keepalive_interval_s, keepalive_probes: `UCX_TCP_KEEP*`: find dead peers of idle connections.
        They never fire while data is unacknowledged, for which there is
    user_timeout_s: `UCX_TCP_USER_TIMEOUT`, from UCX 1.22 on (NIXL's wheel has it, ucxx's pinned libucx does not). The
        transfers' own deadlines hold in any case.

    RDMA further needs unlimited locked memory (`ulimit -l`) and /dev/infiniband in the container.
    """

    fabric: UcxFabric = "auto"
    devices: str = ""
    gid_index: int = -1
    traffic_class: int | None = None
    service_level: int | None = None
    rails: int = 1
    rendezvous_bytes: int = 0
    rendezvous_scheme: str = ""
    keepalive_idle_s: int = 2
    keepalive_interval_s: int = 1
    keepalive_probes: int = 3
    user_timeout_s: int = 5
    log_level: str = "error"

    def __post_init__(self) -> None:
        for name in ("rails", "keepalive_idle_s", "keepalive_interval_s", "keepalive_probes", "user_timeout_s"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ucx.{name} must be at least 1, but is {getattr(self, name)}", param=f"ucx.{name}")
        if self.rendezvous_bytes < 0:
            raise ConfigError("ucx.rendezvous_bytes must not be negative", param="ucx.rendezvous_bytes")
        if not -1 <= self.gid_index <= 255:
            raise ConfigError("ucx.gid_index must be -1 (choose) to 255", param="ucx.gid_index")
        if self.traffic_class is not None and not 0 <= self.traffic_class <= 255:
            raise ConfigError("ucx.traffic_class must be 0 to 255", param="ucx.traffic_class")
        if self.service_level is not None and not 0 <= self.service_level <= 15:
            raise ConfigError("ucx.service_level must be 0 to 15", param="ucx.service_level")
        if self.rendezvous_scheme not in _SCHEMES:
            raise ConfigError(f"ucx.rendezvous_scheme must be one of {_SCHEMES}", param="ucx.rendezvous_scheme")


def ucx_environment(
    settings: UcxSettings, *, rdma: bool, rdma_only: bool = False, gid_index: int | None = None
) -> dict[str, str]:
    """The variables to set before import.

    `rdma`: whether this host has a usable RDMA device (decides only for `fabric = auto`). `rdma_only`: leave UCX
    nothing else, so that it fails where there is none. `gid_index`: the chosen entry of the RoCE GID table, used when
    the settings leave the choice open.
    """
    fabric = settings.fabric
    if fabric == "auto" and rdma_only:
        fabric = "roce"
    over_rdma = fabric in ("roce", "infiniband") or (fabric == "auto" and rdma)
    tls = _TLS_AUTO_RDMA if fabric == "auto" and rdma else _TLS["tcp" if fabric == "auto" else fabric]
    variables = {
        "UCX_TLS": tls,
        "UCX_MAX_RNDV_RAILS": str(settings.rails),
        "UCX_TCP_KEEPIDLE": f"{settings.keepalive_idle_s}s",
        "UCX_TCP_KEEPINTVL": f"{settings.keepalive_interval_s}s",
        "UCX_TCP_KEEPCNT": str(settings.keepalive_probes),
        "UCX_TCP_USER_TIMEOUT": f"{settings.user_timeout_s}s",
        "UCX_TCP_CM_REUSEADDR": "y",  # a restarted replica gets its port back at once
        "UCX_WARN_UNUSED_ENV_VARS": "n",  # UCX warns on standard output, and versions differ in what they know
        "UCX_LOG_LEVEL": settings.log_level,
    }
    if not over_rdma:
        # NIXL 1.5.1's wheel ends with a segmentation fault at process exit once its InfiniBand modules were loaded.
        variables["UCX_MODULES"] = "^ib,mlx5,efa"
    if settings.rendezvous_bytes:
        variables["UCX_RNDV_THRESH"] = str(settings.rendezvous_bytes)
    if settings.devices:
        variables["UCX_NET_DEVICES"] = settings.devices
    scheme = settings.rendezvous_scheme or ("auto" if over_rdma else "put_zcopy")
    if scheme != "auto":
        variables["UCX_RNDV_SCHEME"] = scheme
    if over_rdma and fabric != "infiniband":
        index = settings.gid_index if settings.gid_index >= 0 else gid_index
        if index is not None:
            variables["UCX_IB_GID_INDEX"] = str(index)
    if over_rdma and settings.traffic_class is not None:
        variables["UCX_IB_TRAFFIC_CLASS"] = str(settings.traffic_class)
    if over_rdma and settings.service_level is not None:
        variables["UCX_IB_SL"] = str(settings.service_level)
    return variables


def apply(variables: dict[str, str], environment: MutableMapping[str, str]) -> None:
    """Set what is not set yet."""
    for name, value in variables.items():
        environment.setdefault(name, value)

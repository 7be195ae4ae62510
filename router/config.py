"""What can be set about the router. Built once at the entry point, checked when built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from contracts.control_secret import check_control_secret
from contracts.errors import ConfigError
from contracts.request import Slo
from router.share_key import FairShareBy
from scheduling.config import ClusterCoreConfig

ADMIN_TOKEN_VARIABLE = "PHASESERVE_ADMIN_TOKEN"
API_KEYS_VARIABLE = "PHASESERVE_API_KEYS"
_ENDPOINT = re.compile(r"tcp://([^\[\]:/]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}\Z")


_TOKEN = re.compile(r"[!-~]{16,}\Z")


DiscoveryKind = Literal["static", "file", "kubernetes"]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on one HTTP request. Over `max_body_bytes` the answer is 413, over any other 400 naming the field.

    `max_open` bounds the requests that are being judged or answered at the same time (429 beyond). Bodies that have
    not arrived whole are bounded apart, so that slow senders keep nobody out: of more than `max_receiving` the oldest
    is given up, any after `body_deadline_s` seconds (408).
    `max_choices` bounds prompts x n. All are greater than 0. `inline_chars` is the text length
    above which tokenising leaves the event loop.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    max_open: int = 1024
    max_receiving: int = 1024
    body_deadline_s: float = 30.0
    max_n: int = 16
    max_logprobs: int = 20
    max_stop: int = 16
    max_stop_chars: int = 256
    max_stop_token_ids: int = 256
    max_prompts: int = 64
    max_choices: int = 128
    max_messages: int = 2048
    max_logit_bias: int = 1024
    inline_chars: int = 4096

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0", param=name)


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One router. Times in seconds.

    `model` is what is resolved and checked against the replicas; `served_names` are the names clients may use
    (empty: the model's own short name). `replicas` are `tcp://host:port` control endpoints; with `discovery` "file"
    they are in `replicas_file` instead, with "kubernetes" they are found there.
    A replica that says nothing for `silence_s` is lost; it is pinged every `heartbeat_s`.
    `request_deadline_s` bounds a whole request; `drain_s` bounds the wait for running streams after SIGTERM.
    `max_context` lowers the model's own context length when set.
    `admin_token` is what an operator's endpoints want as bearer (in the environment: `PHASESERVE_ADMIN_TOKEN`); empty:
    they are for clients on this machine only.
    `api_keys`: whoever asks under /v1 must send one of them as bearer (in the environment: `PHASESERVE_API_KEYS`,
    separated by commas); empty: everybody may ask. With a `control_secret` it speaks only to replicas that know it
    (`contracts.control_secret`). With `tls_cert` and `tls_key` (PEM files) the port speaks HTTPS.
    `fair_share_by` says what tells apart those among whom service is shared, see `router.share_key`.

    Of `shards` routers that share a port and the list `replicas`, this is number `shard`: it serves the replicas that
    `scheduling.shards` gives it, and knows of no others.
    """

    model: str
    replicas: tuple[str, ...] = ()
    discovery: DiscoveryKind = "static"
    replicas_file: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    slo: Slo = Slo()
    cluster: ClusterCoreConfig = ClusterCoreConfig()
    limits: RequestLimits = RequestLimits()
    max_context: int | None = None
    heartbeat_s: float = 0.5
    silence_s: float = 3.0
    tick_s: float = 0.1
    request_deadline_s: float = 600.0
    drain_s: float = 60.0
    admin_token: str = ""
    api_keys: tuple[str, ...] = ()
    control_secret: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    fair_share_by: FairShareBy = "api_key"
    shard: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        positive = ("heartbeat_s", "silence_s", "tick_s", "request_deadline_s")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0", param=name)
        if self.silence_s <= self.heartbeat_s:
            raise ConfigError("silence_s must be greater than heartbeat_s", param="silence_s")
        known = get_args(FairShareBy)
        if self.fair_share_by not in known:
            raise ConfigError(f"fair_share_by must be one of {', '.join(known)}", param="fair_share_by")
        self._check_replicas()
        if not 0 <= self.shard < self.shards:
            raise ConfigError(f"shard must lie between 0 and {self.shards - 1}", param="shard")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not in 0..65535", param="port")
        if self.max_context is not None and self.max_context < 2:
            raise ConfigError("max_context must be at least 2", param="max_context")
        check_control_secret(self.control_secret)
        if any(not _TOKEN.match(key) for key in self.api_keys):
            raise ConfigError("an API key must be at least 16 printable characters without spaces", param="api_keys")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key belong together: one of them is missing", param="tls_cert")
        if self.admin_token and not _TOKEN.match(self.admin_token):
            raise ConfigError(
                "admin_token must be at least 16 printable characters without spaces", param="admin_token"
            )

    def _check_replicas(self) -> None:
        if self.discovery not in get_args(DiscoveryKind):
            known = ", ".join(get_args(DiscoveryKind))
            raise ConfigError(f"discovery must be one of {known}", param="discovery")
        if bool(self.replicas_file) != (self.discovery == "file"):
            raise ConfigError('replicas_file belongs to discovery "file", and only there', param="replicas_file")
        if self.discovery != "static":
            if self.replicas:
                told = f'with discovery "{self.discovery}" no replicas are listed: they are found'
                raise ConfigError(told, param="replicas")
            if self.shards < 1:
                raise ConfigError("shards must be at least 1", param="shards")
            return
        if not self.replicas:
            raise ConfigError("at least one replica endpoint is needed", param="replicas")
        if not 1 <= self.shards <= len(self.replicas):
            raise ConfigError(f"shards must lie between 1 and the {len(self.replicas)} replicas", param="shards")
        check_endpoints(self.replicas)


def check_endpoints(endpoints: Sequence[str], where: str = "") -> None:
    """Raises `ConfigError` where one is no `tcp://host:port`, or is listed twice. `where` begins the message."""
    for endpoint in endpoints:
        if not _ENDPOINT.match(endpoint):
            raise ConfigError(f"{where}{endpoint!r} is not of the form tcp://host:port", param="replicas")
    if len(set(endpoints)) != len(endpoints):
        raise ConfigError(f"{where}the same replica endpoint is listed twice", param="replicas")

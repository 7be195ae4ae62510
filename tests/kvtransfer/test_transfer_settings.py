"""The data plane's settings are checked when built, and become UCX variables in one place."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import ConfigError
from kvtransfer.config import Faults, TransferConfig
from kvtransfer.ucx_settings import UcxSettings, apply, ucx_environment

SECRET = "0123456789abcdef"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"enabled": True}, "secret"),
        ({"enabled": True, "secret": "short"}, "secret"),
        ({"port": 70000}, "port"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"window": -1}, "window"),
        ({"tls_cert": "cert.pem"}, "tls_cert"),
        ({"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "transport": "ucx"}, "transport"),
        ({"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "require": "rdma"}, "require"),
        ({"require": "rdma", "transport": "tcp"}, "require"),
        ({"require": "rdma", "transport": "cma"}, "require"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TransferConfig(**settings)
    assert caught.value.param == param
    assert param in caught.value.message or param == "transport"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"rails": 0}, "ucx.rails"),
        ({"gid_index": 256}, "ucx.gid_index"),
        ({"traffic_class": 256}, "ucx.traffic_class"),
        ({"service_level": 16}, "ucx.service_level"),
        ({"rendezvous_bytes": -1}, "ucx.rendezvous_bytes"),
        ({"rendezvous_scheme": "magic"}, "ucx.rendezvous_scheme"),
        ({"user_timeout_s": 0}, "ucx.user_timeout_s"),
    ],
)
def test_a_wrong_ucx_setting_is_named(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UcxSettings(**settings)
    assert caught.value.param == param


def test_required_rdma_over_tcp_is_a_contradiction() -> None:
    with pytest.raises(ConfigError, match=r"ucx\.fabric = tcp"):
        TransferConfig(require="rdma", ucx=UcxSettings(fabric="tcp"))


@pytest.mark.parametrize("settings", [{"drop": 1.5}, {"corrupt": -0.1}, {"delay_s": -1.0}])
def test_wrong_faults(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="faults"):
        Faults(**settings)  # type: ignore[arg-type]


def test_good_settings() -> None:
    assert TransferConfig(enabled=True, secret=SECRET, require="rdma").ucx == UcxSettings()
    assert TransferConfig(tls_cert="c", tls_key="k", tls_ca="a").tls


def test_tcp_is_set_up_for_speed_and_failures() -> None:
    variables = ucx_environment(UcxSettings(), rdma=False)
    assert variables["UCX_TLS"] == "tcp", "shared memory would bypass the network between namespaces"
    assert variables["UCX_RNDV_SCHEME"] == "put_zcopy"
    assert variables["UCX_TCP_KEEPIDLE"] == "2s"
    assert variables["UCX_TCP_USER_TIMEOUT"] == "5s"
    assert variables["UCX_WARN_UNUSED_ENV_VARS"] == "n"
    assert variables["UCX_MODULES"] == "^ib,mlx5,efa"
    assert "UCX_MODULES" not in ucx_environment(UcxSettings(), rdma=True)
    assert "UCX_IB_GID_INDEX" not in variables
    assert "UCX_NET_DEVICES" not in variables
    assert "UCX_RNDV_THRESH" not in variables, "with it NIXL copies every write once more"
    assert ucx_environment(UcxSettings(rendezvous_bytes=4096), rdma=False)["UCX_RNDV_THRESH"] == "4096"


def test_auto_takes_rdma_where_there_is_some() -> None:
    variables = ucx_environment(UcxSettings(traffic_class=106, service_level=3), rdma=True, gid_index=3)
    assert variables["UCX_TLS"] == "^sm"
    assert "UCX_RNDV_SCHEME" not in variables, "UCX's own choice: RDMA reads and writes"
    assert variables["UCX_IB_GID_INDEX"] == "3"
    assert variables["UCX_IB_TRAFFIC_CLASS"] == "106"
    assert variables["UCX_IB_SL"] == "3"


def test_required_rdma_leaves_ucx_nothing_else() -> None:
    assert ucx_environment(UcxSettings(), rdma=False, rdma_only=True)["UCX_TLS"] == "rc,ud"


def test_named_fabrics() -> None:
    roce = ucx_environment(UcxSettings(fabric="roce", gid_index=5, devices="mlx5_0:1", rails=2), rdma=True, gid_index=3)
    assert roce["UCX_IB_GID_INDEX"] == "5", "what was configured wins over what was found"
    assert roce["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert roce["UCX_MAX_RNDV_RAILS"] == "2"
    infiniband = ucx_environment(UcxSettings(fabric="infiniband"), rdma=True, gid_index=3)
    assert infiniband["UCX_TLS"] == "rc,ud"
    assert "UCX_IB_GID_INDEX" not in infiniband
    shared = ucx_environment(UcxSettings(fabric="shm", rendezvous_scheme="auto"), rdma=False)
    assert "cma" in shared["UCX_TLS"]
    assert "UCX_RNDV_SCHEME" not in shared


def test_what_was_exported_wins() -> None:
    environment = {"UCX_TLS": "rc"}
    apply({"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "error"}, environment)
    assert environment == {"UCX_TLS": "rc", "UCX_LOG_LEVEL": "error"}

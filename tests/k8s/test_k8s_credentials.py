"""How a router knows its API server: kubeconfigs of all kinds that it takes, and those that it refuses, by reason."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError
from k8s import credentials
from k8s.credentials import TokenFile, find_cluster


def kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any], **context: Any) -> str:
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = folder / "config"
    path.write_text(json.dumps(document))
    return str(path)


PLAIN = {"server": "http://127.0.0.1:1/"}


def test_a_token_and_a_namespace(tmp_path: Path) -> None:
    cluster = find_cluster(kubeconfig(tmp_path, PLAIN, {"token": "t"}, namespace="serving"), {})
    assert (cluster.server, cluster.namespace, cluster.tls) == ("http://127.0.0.1:1", "serving", None)
    assert cluster.bearer.token() == "t"
    assert find_cluster("", {"KUBECONFIG": kubeconfig(tmp_path, PLAIN, {})}).namespace == "default"


def test_a_token_that_the_kubelet_replaces_is_read_again_and_one_that_vanishes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    bearer = TokenFile(path)
    assert bearer.token() == "one"
    path.write_text("two\n")
    os.utime(path, (1, 1))
    assert bearer.token() == "two"
    path.unlink()
    assert bearer.token() == "two"


def test_certificates(tmp_path: Path, tls_files: Any) -> None:
    files = tls_files("k8s")
    data = {name: base64.b64encode(Path(files[name]).read_bytes()).decode() for name in files}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": data["tls_ca"]}
    user = {"client-certificate-data": data["tls_cert"], "client-key": files["tls_key"]}
    tls = find_cluster(kubeconfig(tmp_path, cluster, user), {}).tls
    assert tls is not None
    assert tls.check_hostname
    assert [found["subject"] for found in tls.get_ca_certs()] == [((("commonName", "k8s"),),)]
    loose = find_cluster(kubeconfig(tmp_path, {**cluster, "insecure-skip-tls-verify": True}, {}), {}).tls
    assert loose is not None
    assert not loose.check_hostname


@pytest.mark.parametrize(
    ("cluster", "user", "told"),
    [
        (PLAIN, {"exec": {"command": "aws"}}, "'exec'"),
        (PLAIN, {"auth-provider": {"name": "gcp"}}, "'auth-provider'"),
        ({}, {}, "is no kubeconfig"),
        ({"server": "https://x", "certificate-authority": "nowhere.pem"}, {}, "certificates"),
        ({"server": "https://x", "certificate-authority-data": "no base64"}, {}, "is no kubeconfig"),
    ],
)
def test_what_cannot_be_used_is_refused_by_reason(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        find_cluster(kubeconfig(tmp_path, cluster, user), {})


@pytest.mark.parametrize("text", ["", "[]", "{", "contexts: 3\ncurrent-context: x\n"])
def test_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no kubeconfig"):
        find_cluster(str(path), {})


def test_in_a_pod_the_service_account_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_files: Any) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(ConfigError, match="no service account token"):
        find_cluster("", environment)
    (tmp_path / "ca.crt").write_bytes(Path(tls_files("k8s")["tls_ca"]).read_bytes())
    (tmp_path / "namespace").write_text("serving")
    (tmp_path / "token").write_text("t")
    cluster = find_cluster("", environment)
    assert (cluster.server, cluster.namespace, cluster.bearer.token()) == ("https://[fd00::1]:443", "serving", "t")

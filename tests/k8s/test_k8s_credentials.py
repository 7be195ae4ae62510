"""How a router knows its API server: kubeconfigs of all kinds that it takes, and those that it refuses, by reason."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client
from kubernetes.aio.config import incluster_config

from contracts.errors import ConfigError
from k8s import credentials
from k8s.access import LIST_SLICES
from k8s.api import ApiClient, ApiError, ApiUnreachableError
from k8s.credentials import Cluster, find_cluster
from k8s.objects import RawList

PLAIN = {"server": "http://127.0.0.1:1/"}


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


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


def bearer(cluster: Cluster) -> str:
    return str(cluster.configuration.api_key.get("BearerToken", ""))


def content(path: str) -> bytes:
    return Path(path).read_bytes()


async def slices(api: ApiClient) -> RawList:
    return await api.call(LIST_SLICES, RawList, timeout_s=5)


async def test_a_token_and_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await find_cluster(kubeconfig(tmp_path, PLAIN, {"token": "t"}, namespace="serving"))
    assert (cluster.server, cluster.namespace, bearer(cluster)) == ("http://127.0.0.1:1", "serving", "Bearer t")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, PLAIN, {}))
    assert (await find_cluster()).namespace == "default"


async def test_a_token_that_the_kubelet_replaces_is_read_again_and_one_that_vanishes_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    cluster = await find_cluster(kubeconfig(tmp_path, PLAIN, {"tokenFile": "token"}))
    assert bearer(cluster) == "Bearer one"
    path.write_text("two\n")
    await cluster.refresh()
    assert bearer(cluster) == "Bearer two"
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        await cluster.refresh()
    assert bearer(cluster) == "Bearer two"


async def test_calls_carry_the_token_that_is_there_now(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "REFRESH_S", 0.02)
    path = tmp_path / "token"
    path.write_text("expired")
    cluster = await find_cluster(kubeconfig(tmp_path, {"server": fake.url}, {"tokenFile": "token"}))
    async with ApiClient(cluster, "default") as api:
        with pytest.raises(ApiError, match="401"):
            await slices(api)
        path.unlink()
        await asyncio.sleep(0.1)  # refreshing fails now, and goes on
        path.write_text("admin-token\n")
        async with asyncio.timeout(5):
            while bearer(cluster) != "Bearer admin-token":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await slices(api)


async def test_another_context_that_somebody_chose_meanwhile_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config"
    cluster = await find_cluster(kubeconfig(tmp_path, PLAIN, {"token": "one"}))
    document = json.loads(path.read_text())
    document["current-context"] = "y"
    document["contexts"].append({"name": "y", "context": {"cluster": "d", "user": "v"}})
    document["clusters"].append({"name": "d", "cluster": {"server": "http://127.0.0.1:2"}})
    document["users"].append({"name": "v", "user": {"token": "of another cluster"}})
    document["users"][0]["user"]["token"] = "two"
    path.write_text(json.dumps(document))
    await cluster.refresh()
    assert (cluster.server, bearer(cluster)) == ("http://127.0.0.1:1", "Bearer two")


async def test_a_program_gives_credentials_and_is_asked_again(
    tmp_path: Path, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "one"}}
    answer = tmp_path / "answer"
    answer.write_text(json.dumps(told))
    program = {"apiVersion": told["apiVersion"], "command": "cat", "args": [str(answer)]}
    cluster = await find_cluster(kubeconfig(tmp_path, PLAIN, {"exec": program}))
    assert bearer(cluster) == "Bearer one"
    answer.write_text(json.dumps({**told, "status": {"token": "two"}}))
    await cluster.refresh()
    assert bearer(cluster) == "Bearer two"
    answer.unlink()
    await cluster.refresh()
    assert bearer(cluster) == "Bearer two"
    assert bearer(await find_cluster(cluster.kubeconfig)) == ""
    assert "anonymous" in caplog.text
    assert "No such file" in caplog.text


async def test_a_program_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOAD_S", 0.05)
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["0.3"]}
    with pytest.raises(ConfigError, match="no credentials from its program within"):
        await find_cluster(kubeconfig(tmp_path, PLAIN, {"exec": program}))
    await asyncio.sleep(0.5)  # its end is reaped here, not in another test


async def test_calls_go_through_a_proxy(tmp_path: Path, fake: Any) -> None:
    elsewhere = {"server": "http://api.invalid", "proxy-url": fake.url}
    cluster = await find_cluster(kubeconfig(tmp_path, elsewhere, {"token": "admin-token"}))
    async with ApiClient(cluster, "default") as api:
        assert (await slices(api)).metadata.resource_version


async def test_certificates(tmp_path: Path, tls_files: Any) -> None:
    files = tls_files("k8s")
    data = {name: base64.b64encode(content(files[name])).decode() for name in files}
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": data["tls_ca"]}
    user = {"client-certificate-data": data["tls_cert"], "client-key": files["tls_key"]}
    configuration = (await find_cluster(kubeconfig(tmp_path, cluster, user))).configuration
    tls = client.ApiClient(configuration).rest_client.ssl_context
    assert tls.check_hostname
    assert [found["subject"] for found in tls.get_ca_certs()] == [((("commonName", "k8s"),),)]
    loose = await find_cluster(kubeconfig(tmp_path, {**cluster, "insecure-skip-tls-verify": True}, {}))
    assert not client.ApiClient(loose.configuration).rest_client.ssl_context.check_hostname


@pytest.fixture
def https_server(tls_files: Any) -> Iterator[tuple[str, dict[str, str]]]:
    files = tls_files("k8s")
    words = ["--cert", files["tls_cert"], "--key", files["tls_key"], "--token", "t=admin"]
    command = [sys.executable, "-m", "tests.k8s.apiserver", *words]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1], files
        process.kill()


async def test_only_the_authority_that_was_named_is_believed(
    tmp_path: Path, https_server: tuple[str, dict[str, str]], tls_files: Callable[[str], dict[str, str]]
) -> None:
    url, files = https_server
    for authority, refused in ((files["tls_ca"], False), (tls_files("other")["tls_ca"], True)):
        cluster = {"server": url, "certificate-authority": authority, "tls-server-name": "member"}
        async with ApiClient(await find_cluster(kubeconfig(tmp_path, cluster, {"token": "t"})), "default") as api:
            if refused:
                with pytest.raises(ApiUnreachableError, match="certificate"):
                    await slices(api)
            else:
                await slices(api)


@pytest.mark.parametrize(
    ("cluster", "user", "told"),
    [
        (PLAIN, {"auth-provider": {"name": "gcp"}}, "'auth-provider'"),
        ({}, {}, "names no server"),
        ({"server": "https://x", "certificate-authority": "nowhere.pem"}, {}, "nowhere.pem"),
        ({"server": "https://x", "certificate-authority-data": "no base64"}, {}, "certificates"),
        ({"server": "https://x", "certificate-authority-data": "bm9uZQ=="}, {}, "certificates"),
    ],
)
async def test_what_cannot_be_used_is_refused_by_reason(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        await find_cluster(kubeconfig(tmp_path, cluster, user))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "contexts: 3\ncurrent-context: x\n", "{users: [{name: u, token: s3cret}], current-context: x}"],
)
async def test_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be used as a kubeconfig"):
        await find_cluster(str(path))


async def test_a_refusal_shows_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "config"
    kubeconfig(tmp_path, PLAIN, {})
    document = json.loads(path.read_text())
    document["users"] = [{"name": "u", "token": "s3cret"}]  # not under `user`
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError) as refused:
        await find_cluster(str(path))
    assert "Expected key user" in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_in_a_pod_the_service_account_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls_files: Any
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    with pytest.raises(ConfigError, match="no service account token"):
        await find_cluster()
    (tmp_path / "ca.crt").write_bytes(content(tls_files("k8s")["tls_ca"]))
    (tmp_path / "namespace").write_text("serving")
    (tmp_path / "token").write_text("t\n")
    cluster = await find_cluster()
    assert (cluster.server, cluster.namespace, bearer(cluster)) == ("https://[fd00::1]:443", "serving", "bearer t")
    (tmp_path / "token").write_text("u")
    await cluster.refresh()
    assert bearer(cluster) == "bearer u"
    (tmp_path / "ca.crt").write_text("none")
    with pytest.raises(ConfigError, match="certificates"):
        await find_cluster()

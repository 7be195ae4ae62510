"""Where the API server is and how it knows us: a pod's service account, or a kubeconfig. Reads files and environment.

Tokens of service accounts are replaced by the kubelet every hour or so: the file is read again when it changed.
Kubeconfigs that name a program or a provider to ask for credentials are refused: no router runs with those.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contracts.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PARAM = "kubernetes.kubeconfig"


class TokenFile:
    """A bearer token that others may replace at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, str] | None = None

    def token(self) -> str:
        """As it is now; the last one while the file cannot be read."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if self._read is None or self._read[0] != changed_ns:
                self._read = (changed_ns, self._path.read_text(encoding="ascii").strip())
        except OSError as error:
            if self._read is None:
                raise ConfigError(f"cannot read {self._path}: {error.strerror}", param=_PARAM) from error
        return self._read[1] if self._read is not None else ""


class FixedToken:
    """A bearer token that stays, or none at all (empty)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        """Always the same."""
        return self._token


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server as one client sees it. `tls` is None for plain HTTP."""

    server: str
    namespace: str
    tls: ssl.SSLContext | None
    bearer: TokenFile | FixedToken


def find_cluster(kubeconfig: str = "", environment: Mapping[str, str] | None = None) -> Cluster:
    """The named kubeconfig, else the pod's service account, else $KUBECONFIG or ~/.kube/config.

    Raises `ConfigError` saying what is missing.
    """
    environment = os.environ if environment is None else environment
    if not kubeconfig and environment.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environment)
    path = Path(kubeconfig or environment.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        told = f"no Kubernetes here: not in a pod, and cannot read {path}: {error.strerror}"
        raise ConfigError(told, param=_PARAM) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no kubeconfig: {error}", param=_PARAM) from error
    try:
        return _from_kubeconfig(document, path)
    except (KeyError, TypeError, StopIteration, AttributeError, binascii.Error) as error:
        raise ConfigError(f"{path} is no kubeconfig, or its current context is missing", param=_PARAM) from error
    except OSError as error:  # certificates that are not there, or not certificates
        raise ConfigError(f"{path}: cannot use its certificates: {error}", param=_PARAM) from error


def _in_cluster(environment: Mapping[str, str]) -> Cluster:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
        namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except OSError as error:
        told = f"this pod has no service account token mounted at {SERVICE_ACCOUNT}: {error}"
        raise ConfigError(told, param=_PARAM) from error
    bearer = TokenFile(SERVICE_ACCOUNT / "token")
    bearer.token()
    return Cluster(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", namespace, tls, bearer)


def _from_kubeconfig(document: Any, path: Path) -> Cluster:
    context = _named(document["contexts"], document["current-context"])["context"]
    cluster = _named(document["clusters"], context["cluster"])["cluster"]
    user = _named(document.get("users") or [], context["user"])["user"] if context.get("user") else {}
    user = user or {}
    for way in ("exec", "auth-provider", "username"):
        if way in user:
            raise ConfigError(f"{path}: credentials by {way!r} are not supported: use a token or a certificate")
    server = str(cluster["server"]).rstrip("/")
    tls = _tls(cluster, user, path.parent) if server.startswith("https://") else None
    token_file = user.get("tokenFile")
    bearer = TokenFile(path.parent / token_file) if token_file else FixedToken(str(user.get("token", "")))
    return Cluster(server, str(context.get("namespace") or "default"), tls, bearer)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _bytes_of(cluster, "certificate-authority", folder)
    tls = ssl.create_default_context(cadata=None if authority is None else authority.decode())
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    certificate, key = _bytes_of(user, "client-certificate", folder), _bytes_of(user, "client-key", folder)
    if certificate is not None and key is not None:
        with tempfile.NamedTemporaryFile() as pair:  # the ssl module takes them from files only; 0600
            pair.write(certificate + b"\n" + key)
            pair.flush()
            tls.load_cert_chain(pair.name)
    return tls


def _bytes_of(entry: dict[str, Any], name: str, folder: Path) -> bytes | None:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data, validate=True)
    return (folder / entry[name]).read_bytes() if entry.get(name) else None

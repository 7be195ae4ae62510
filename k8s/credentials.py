"""Where the API server is and how it knows us: a service account or a kubeconfig, by the official client's loaders.

What they refuse is said in our words. Tokens are read again every minute: the kubelet replaces those of service
accounts about hourly, and programs that a kubeconfig names (`exec`) give new ones. The loaders' own ways do not do
here: one fails every call while the file is away and keeps a line's end, the other asks programs only. The last token
is kept while there is no new one. Certificates and keys are read once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes.aio import client
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from contracts.errors import ConfigError

log = logging.getLogger("phaseserve.k8s")

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOAD_S = 30.0
"""How long a program may take to give credentials."""
REFRESH_S = 60.0
_BEARER = "BearerToken"
_PARAM = "kubernetes.kubeconfig"


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server as one client sees it. `kubeconfig` and `context` are empty in a pod."""

    configuration: client.Configuration
    namespace: str
    kubeconfig: str = ""
    context: str = ""

    @property
    def server(self) -> str:
        """Its URL."""
        return str(self.configuration.host)

    async def refresh(self) -> None:
        """Read or ask for the token again. Raises `ConfigError`; the one there is stays until there is a new one."""
        fresh = client.Configuration()
        if self.kubeconfig:
            await _load(self.kubeconfig, self.context, fresh)
        else:
            _load_service_account(fresh)
        if token := fresh.api_key.get(_BEARER):
            self.configuration.api_key[_BEARER] = token

    async def keep_fresh(self) -> None:
        """`refresh` until cancelled."""
        trouble = ""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
                trouble = ""
            except ConfigError as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("%s; the last token is kept", trouble)


async def find_cluster(kubeconfig: str = "") -> Cluster:
    """The named kubeconfig, else the pod's service account, else $KUBECONFIG or ~/.kube/config.

    Raises `ConfigError` saying what is missing.
    """
    configuration = client.Configuration()
    if not kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
        cluster = Cluster(configuration, _load_service_account(configuration))
    else:
        paths = _kubeconfigs(kubeconfig)
        context, namespace = await _load(paths, "", configuration)
        cluster = Cluster(configuration, namespace, paths, context)
        if not configuration.api_key and not configuration.cert_file:
            log.warning("%s gives no credentials: calls are anonymous", paths)
    if not cluster.server:
        raise ConfigError(f"{cluster.kubeconfig}: its current context names no server", param=_PARAM)
    try:
        client.ApiClient(configuration)  # reads the certificates, connects to nobody
    except OSError as error:
        told = f"{cluster.kubeconfig or SERVICE_ACCOUNT}: cannot use its certificates: {error}"
        raise ConfigError(told, param=_PARAM) from error
    return cluster


def _kubeconfigs(named: str) -> str:
    """One path or several, as in $KUBECONFIG."""
    paths = named or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(path and Path(path).expanduser().exists() for path in paths.split(os.pathsep)):
        raise ConfigError(f"no Kubernetes here: not in a pod, and no file {paths}", param=_PARAM)
    return paths


def _load_service_account(configuration: client.Configuration) -> str:
    """The namespace of the pod."""
    try:
        load_incluster_config(configuration, try_refresh_token=False)
        namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except (ConfigException, OSError, ValueError) as error:
        told = f"this pod has no service account token mounted at {SERVICE_ACCOUNT}: {error}"
        raise ConfigError(told, param=_PARAM) from error
    _strip(configuration)
    return namespace


async def _load(paths: str, context: str, configuration: client.Configuration) -> tuple[str, str]:
    """The names of the context (the current one for "") and of its namespace."""
    try:
        # No base path: what stands in a file is relative to that file.
        loader = KubeConfigLoader(KubeConfigMerger(paths).config, active_context=context or None, config_base_path=None)
        if loader.provider is not None:  # its OpenID half sends secrets over connections that nobody verified
            told = f"{paths}: credentials by an 'auth-provider' are not supported: use a token, a certificate or 'exec'"
            raise ConfigError(told, param=_PARAM)
        async with asyncio.timeout(LOAD_S):
            await loader.load_and_set(configuration)
        chosen = loader.current_context
        names = str(chosen["name"]), str(chosen["context"].get("namespace") or "default")
    except TimeoutError as error:
        raise ConfigError(f"{paths}: no credentials from its program within {LOAD_S:g} s", param=_PARAM) from error
    except OSError as error:
        raise ConfigError(f"{paths}: cannot read {error.filename or 'it'}: {error.strerror}", param=_PARAM) from error
    except (ConfigException, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).partition("{")[0]  # behind that it shows the entry, secrets and all
        raise ConfigError(f"{paths} cannot be used as a kubeconfig: {reason}", param=_PARAM) from error
    _strip(configuration)
    return names


def _strip(configuration: client.Configuration) -> None:
    """A file's last line has an end, which no header may have."""
    if token := configuration.api_key.get(_BEARER):
        configuration.api_key[_BEARER] = token.strip()

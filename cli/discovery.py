"""How a router finds its replicas: the discovery that the settings name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cli.overlay import build
from cli.settings import Settings
from contracts.errors import ConfigError
from k8s.config import KubernetesConfig
from router.config import RouterConfig
from router.file_discovery import FileDiscovery, read_endpoints

if TYPE_CHECKING:
    from contracts.discovery import Discovery


def discovery_of(config: RouterConfig, settings: Settings) -> Discovery | None:
    """None for a list in the settings. Raises `ConfigError`: a file that is wrong, no API server that could be named,
    or packages that are missing."""
    kubernetes = build(KubernetesConfig, [settings.table("kubernetes")])
    if config.discovery == "file":
        path = Path(config.replicas_file)
        read_endpoints(path)
        return FileDiscovery(path)
    if config.discovery == "kubernetes":
        try:
            from k8s.control import discovery
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            told = f"discovery in Kubernetes needs the package {package}: pip install 'phaseserve[k8s]'"
            raise ConfigError(told, param="router.discovery") from error
        return asyncio.run(discovery(kubernetes))
    return None

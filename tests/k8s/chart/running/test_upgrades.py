"""Upgrades by Helm on an API server: what is live and must stay, stays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHART = Path(__file__).resolve().parents[4] / "k8s" / "chart"


class Cluster:
    """Helm and kubectl on one API server."""

    def __init__(self, helm: Any, kubectl: Path, kubeconfig: Path) -> None:
        self.helm, self._kubectl = helm, kubectl
        self._environment = helm.environment | {"KUBECONFIG": str(kubeconfig)}

    def upgrade(self, *settings: str) -> None:
        words = [str(self.helm.binary), "upgrade", "--install", "chat", str(CHART), "--reuse-values"]
        words += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(words, check=False, env=self._environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def get(self, kind: str, name: str) -> dict[str, Any]:
        words = [str(self._kubectl), "get", kind, name, "-o", "json"]
        done = subprocess.run(words, check=True, env=self._environment, capture_output=True, text=True, timeout=60)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def scale(self, name: str, size: int) -> None:
        """As an autoscaler does it."""
        words = [str(self._kubectl), "scale", name, f"--replicas={size}"]
        subprocess.run(words, check=True, env=self._environment, capture_output=True, timeout=60)

    def size(self, name: str = "chat-alternating") -> int:
        number: int = self.get("statefulset", name)["spec"]["replicas"]
        return number


@pytest.fixture(params=["4", pytest.param("3", marks=pytest.mark.slow)], ids=lambda major: f"helm{major}")
def upgraded(request: pytest.FixtureRequest, kubectl: Path, cluster: Path) -> Cluster:
    name = {"4": "charted", "3": "charted_3"}[request.param]
    return Cluster(request.getfixturevalue(name), kubectl, cluster)


def test_who_takes_over_a_pools_size_finds_it_as_it_was(upgraded: Cluster) -> None:
    upgraded.upgrade("pools.alternating.replicas=4")
    assert upgraded.size() == 4
    upgraded.upgrade("pools.alternating.scaling.by=planner")
    assert upgraded.size() == 4, "the field was given away, not reset"
    upgraded.scale("statefulset/chat-alternating", 6)
    upgraded.upgrade("image.tag=0.2.0-cpu")
    assert upgraded.size() == 6, "an upgrade does not undo what the pool's owner did"
    upgraded.upgrade("pools.mixed.scaling.by=hpa", "pools.mixed.scaling.min=3")
    assert upgraded.size("chat-mixed") == 3


def test_made_secrets_are_kept(upgraded: Cluster) -> None:
    upgraded.upgrade("router.replicas=1")
    before = upgraded.get("secret", "chat-secrets")["data"]
    assert set(before) == {"fleet-secret", "control-secret", "admin-token"}
    upgraded.upgrade("secrets.apiKeys={0123456789abcdef}")
    after = upgraded.get("secret", "chat-secrets")["data"]
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"api-keys"}

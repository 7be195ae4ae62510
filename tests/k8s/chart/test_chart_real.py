"""What no schema knows: a real kube-apiserver's own rules for names, ports, quantities, volumes and selectors. It is of
2021 (1.20), so kinds and fields that are younger are left out here; strict schemas check those."""

from __future__ import annotations

from typing import Any

import pytest

PATHS = {
    "ConfigMap": "api/v1/configmaps",
    "Deployment": "apis/apps/v1/deployments",
    "Ingress": "apis/networking.k8s.io/v1/ingresses",
    "NetworkPolicy": "apis/networking.k8s.io/v1/networkpolicies",
    "PersistentVolumeClaim": "api/v1/persistentvolumeclaims",
    "Pod": "api/v1/pods",
    "Role": "apis/rbac.authorization.k8s.io/v1/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/rolebindings",
    "Secret": "api/v1/secrets",
    "Service": "api/v1/services",
    "ServiceAccount": "api/v1/serviceaccounts",
    "StatefulSet": "apis/apps/v1/statefulsets",
}
YOUNGER = {
    "PodDisruptionBudget",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "HTTPRoute",
    "ServiceMonitor",
    "PrometheusRule",
}


@pytest.mark.slow
def test_a_real_server_takes_every_object(
    charted: Any, real_server: Any, admin_of: Any, ready_made: str | None, everything: dict[str, Any]
) -> None:
    admin = admin_of(real_server)
    for values in ({}, everything):
        documents = charted.documents(values, ready_made=ready_made, namespace=admin.namespace)
        assert {one["kind"] for one in documents} <= set(PATHS) | YOUNGER
        refused = {}
        for one in documents:
            if path := PATHS.get(one["kind"]):
                answer = admin.answer("POST", path, body=one, dryRun="All")
                if not answer.is_success:
                    refused[f"{one['kind']}/{one['metadata']['name']}"] = answer.json()["message"]
        assert not refused


@pytest.mark.slow
def test_the_real_servers_rules_are_asked(charted: Any, real_server: Any, admin_of: Any) -> None:
    """A limit below a request passes every schema."""
    admin = admin_of(real_server)
    resources = {"requests": {"memory": "4Gi"}, "limits": {"memory": "2Gi"}}
    documents = charted.documents({"router": {"resources": resources}}, namespace=admin.namespace)
    (router,) = [one for one in documents if one["kind"] == "Deployment"]
    answer = admin.answer("POST", PATHS["Deployment"], body=router, dryRun="All")
    assert answer.status_code == 422
    assert "memory limit" in answer.json()["message"]

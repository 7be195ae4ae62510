"""What kinds of objects there are, where they live and which subresources they have; CRDs add to the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]
REPLICAS: tuple[Path, Path] = (("spec", "replicas"), ("status", "replicas"))


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind. `scale` names where its size is wanted and where it is told."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    scale: tuple[Path, Path] | None = None

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str, str]:
        """Its place in the table."""
        return (self.group, self.version, self.plural)


def _scaled(plural: str, kind: str, short: str) -> Resource:
    return Resource("apps", "v1", plural, kind, True, ("status", "scale"), (short,), REPLICAS)


RBAC = "rbac.authorization.k8s.io"
BUILT_IN = (
    Resource("", "v1", "namespaces", "Namespace", False, ("status",), ("ns",)),
    Resource("", "v1", "nodes", "Node", False, ("status",), ("no",)),
    Resource("", "v1", "pods", "Pod", True, ("status",), ("po",)),
    Resource("", "v1", "services", "Service", True, ("status",), ("svc",)),
    Resource("", "v1", "endpoints", "Endpoints", True, (), ("ep",)),
    Resource("", "v1", "configmaps", "ConfigMap", True, (), ("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", True, (), ("sa",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("status",), ("pvc",)),
    Resource("", "v1", "events", "Event", True, (), ("ev",)),
    _scaled("deployments", "Deployment", "deploy"),
    _scaled("statefulsets", "StatefulSet", "sts"),
    _scaled("replicasets", "ReplicaSet", "rs"),
    Resource("batch", "v1", "jobs", "Job", True, ("status",)),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, ("status",), ("hpa",)),
    Resource("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, ("status",), ("hpa",)),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("status",), ("pdb",)),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, (), ("netpol",)),
    Resource("networking.k8s.io", "v1", "ingresses", "Ingress", True, ("status",), ("ing",)),
    Resource(RBAC, "v1", "roles", "Role"),
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", False),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        ("status",),
        ("crd",),
    ),
)


def defined_by(crd: dict[str, Any]) -> list[Resource]:
    """The kinds that a CustomResourceDefinition adds, one for each served version."""
    spec, found = crd["spec"], []
    for version in spec["versions"]:
        if not version.get("served", True):
            continue
        subresources = version.get("subresources") or {}
        scale = subresources.get("scale")
        found.append(
            Resource(
                spec["group"],
                version["name"],
                spec["names"]["plural"],
                spec["names"]["kind"],
                spec["scope"] == "Namespaced",
                tuple(name for name in ("status", "scale") if name in subresources),
                tuple(spec["names"].get("shortNames", ())),
                None if scale is None else (_path(scale["specReplicasPath"]), _path(scale["statusReplicasPath"])),
            )
        )
    return found


def _path(dotted: str) -> Path:
    return tuple(dotted.lstrip(".").split("."))

"""What the server says about itself: groups, resources, and as much of OpenAPI as kubectl and Helm ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.k8s.apiserver.answers import no_such_path
from tests.k8s.apiserver.resources import Resource

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0+fake",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_IN_ALL = ("pods", "services", "deployments", "statefulsets")


def groups(resources: Iterable[Resource]) -> dict[str, Any]:
    """`/apis`."""
    versions: dict[str, list[str]] = {}
    for resource in resources:
        if resource.group and resource.version not in versions.setdefault(resource.group, []):
            versions[resource.group].append(resource.version)
    listed = []
    for name, numbers in versions.items():
        shown = [{"groupVersion": f"{name}/{number}", "version": number} for number in numbers]
        listed.append({"name": name, "versions": shown, "preferredVersion": shown[0]})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def resource_list(resources: Iterable[Resource], group: str, version: str) -> dict[str, Any]:
    """`/apis/GROUP/VERSION`. Raises `Refusal` 404."""
    listed: list[dict[str, Any]] = []
    for resource in resources:
        if (resource.group, resource.version) != (group, version):
            continue
        both = {"namespaced": resource.namespaced, "kind": resource.kind}
        listed.append(
            {
                "name": resource.plural,
                "singularName": resource.kind.lower(),
                **both,
                "verbs": VERBS,
                "shortNames": list(resource.short),
                "categories": ["all"] if resource.plural in _IN_ALL else [],
            }
        )
        for name in resource.subresources:
            scale = {"group": "autoscaling", "version": "v1", "kind": "Scale"} if name == "scale" else {}
            shown = {"name": f"{resource.plural}/{name}", "singularName": "", **both, **scale}
            listed.append({**shown, "verbs": ["get", "patch", "update"]})
    if not listed:
        raise no_such_path()
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def openapi(resources: Iterable[Resource], parts: list[str]) -> dict[str, Any]:
    """`/openapi/...`: enough for kubectl to learn that the server validates fields by itself."""
    info = {"title": "Kubernetes", "version": "fake"}
    if parts[:2] != ["openapi", "v3"]:
        return {"swagger": "2.0", "info": info, "paths": {}}
    if len(parts) == 2:
        bases = sorted({_base(resource) for resource in resources})
        return {"paths": {base: {"serverRelativeURL": f"/openapi/v3/{base}?hash=0"} for base in bases}}
    paths = {}
    for resource in resources:
        if _base(resource) != "/".join(parts[2:]):
            continue
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        names = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("fieldValidation", "dryRun")]
        action = {
            "parameters": names,
            "responses": {},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": kind,
        }
        namespaced = "/namespaces/{namespace}/" if resource.namespaced else "/"
        paths[f"/{_base(resource)}{namespaced}{resource.plural}/{{name}}"] = {"patch": action}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _base(resource: Resource) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"

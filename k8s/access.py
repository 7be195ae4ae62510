"""Every permission this room uses, in one table: the API client refuses calls that are not in it, and the chart's Role
is compared with it. Least privilege: nothing is read that is not used, and only the scale subresource is written.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Feature(StrEnum):
    """What a permission is needed for; a deployment without the feature does without the permission."""

    DISCOVERY = "discovery"
    ELECTION = "election"
    ROLES = "roles"
    SCALING = "scaling"


class Access(NamedTuple):
    """One RBAC triple. A subresource is part of the resource's name, as in a Role: `statefulsets/scale`."""

    group: str
    resource: str
    verb: str


LIST_SLICES = Access("discovery.k8s.io", "endpointslices", "list")
WATCH_SLICES = Access("discovery.k8s.io", "endpointslices", "watch")
GET_LEASE = Access("coordination.k8s.io", "leases", "get")
CREATE_LEASE = Access("coordination.k8s.io", "leases", "create")
UPDATE_LEASE = Access("coordination.k8s.io", "leases", "update")
PATCH_POD = Access("", "pods", "patch")
GET_STATEFULSET_SCALE = Access("apps", "statefulsets/scale", "get")
PATCH_STATEFULSET_SCALE = Access("apps", "statefulsets/scale", "patch")
GET_DEPLOYMENT_SCALE = Access("apps", "deployments/scale", "get")
PATCH_DEPLOYMENT_SCALE = Access("apps", "deployments/scale", "patch")
LIST_AUTOSCALERS = Access("autoscaling", "horizontalpodautoscalers", "list")
CREATE_EVENT = Access("", "events", "create")

NEEDED: dict[Access, frozenset[Feature]] = {
    LIST_SLICES: frozenset({Feature.DISCOVERY}),
    WATCH_SLICES: frozenset({Feature.DISCOVERY}),
    GET_LEASE: frozenset({Feature.ELECTION}),
    CREATE_LEASE: frozenset({Feature.ELECTION}),
    UPDATE_LEASE: frozenset({Feature.ELECTION}),
    PATCH_POD: frozenset({Feature.ROLES, Feature.SCALING}),
    GET_STATEFULSET_SCALE: frozenset({Feature.SCALING}),
    PATCH_STATEFULSET_SCALE: frozenset({Feature.SCALING}),
    GET_DEPLOYMENT_SCALE: frozenset({Feature.SCALING}),
    PATCH_DEPLOYMENT_SCALE: frozenset({Feature.SCALING}),
    LIST_AUTOSCALERS: frozenset({Feature.SCALING}),
    CREATE_EVENT: frozenset({Feature.SCALING}),
}
"""Each permission, and what it is for."""


def needed_for(*features: Feature) -> frozenset[Access]:
    """The permissions of a router with these features."""
    return frozenset(access for access, uses in NEEDED.items() if uses & set(features))

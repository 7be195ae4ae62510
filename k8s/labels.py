"""Labels, annotations and names that the chart writes and this room reads. Both sides take them from here.

- The pods of a replica pool carry `NAME_LABEL=phaseserve`, `COMPONENT_LABEL=replica`, `POOL_LABEL=<pool>` and
  `ROLE_LABEL=<role it starts with>`; while it runs the leading router keeps `ROLE_LABEL` at the role it has.
- The headless Service of a pool carries the first three: Kubernetes copies the labels of a Service to its
  EndpointSlices, which is what discovery selects by. Its control port is named `CONTROL_PORT`. It publishes ready
  addresses only (no `publishNotReadyAddresses`).
- A replica's id is the name of its pod (downward API, `--id $(POD_NAME)`), and it listens on its pod's address.
"""

from __future__ import annotations

NAME_LABEL = "app.kubernetes.io/name"
NAME = "phaseserve"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
REPLICA = "replica"
ROUTER = "router"
POOL_LABEL = "phaseserve.dev/pool"
ROLE_LABEL = "phaseserve.dev/role"

CONTROL_PORT = "control"
"""Name of the replica's control port in Service and EndpointSlice; KV goes over another one."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation by which a Deployment's controller chooses whom to delete first: the lowest cost."""
FIRST_TO_GO = "-1000"

REPLICA_SELECTOR = f"{NAME_LABEL}={NAME},{COMPONENT_LABEL}={REPLICA}"
"""What discovery selects EndpointSlices by, unless told otherwise; charts add `INSTANCE_LABEL=<release>`."""

"""The parts of Kubernetes objects that this room reads, as values. Fields that it does not read cost nothing."""

from __future__ import annotations

import msgspec


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Metadata(_Read, frozen=True):
    """`name` is empty in lists; `continue_` names the next page."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    continue_: str = msgspec.field(default="", name="continue")


class Conditions(_Read, frozen=True):
    """None means what the API says it means: ready is unknown-but-assumed, serving follows ready, not terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Target(_Read, frozen=True):
    """What stands behind an endpoint."""

    kind: str = ""
    name: str = ""


class Endpoint(_Read, frozen=True):
    """All addresses of an endpoint are the same pod."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions | None = None
    target_ref: Target | None = None


class Port(_Read, frozen=True):
    """A port without a number is any port, which says nothing."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(_Read, frozen=True):
    """Endpoints and ports may be missing altogether."""

    metadata: Metadata
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None


class LeaseSpec(_Read, frozen=True):
    """`renew_time` is only ever compared for equality: clocks of two machines are not."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(_Read, frozen=True):
    """Who leads."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class ScaleSpec(_Read, frozen=True):
    """The size that is wanted."""

    replicas: int = 0


class ScaleStatus(_Read, frozen=True):
    """The size that is there, ready or not."""

    replicas: int = 0


class Scale(_Read, frozen=True):
    """The scale subresource of a workload; its metadata's uid is the workload's."""

    metadata: Metadata
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class ScaleTarget(_Read, frozen=True):
    """What an autoscaler scales."""

    kind: str = ""
    name: str = ""


class AutoscalerSpec(_Read, frozen=True):
    """The same in autoscaling/v1 and v2."""

    scale_target_ref: ScaleTarget = ScaleTarget()


class Autoscaler(_Read, frozen=True):
    """A HorizontalPodAutoscaler, KEDA's among them."""

    metadata: Metadata
    spec: AutoscalerSpec = AutoscalerSpec()


class AutoscalerList(_Read, frozen=True):
    """All of a namespace."""

    items: tuple[Autoscaler, ...] | None = None


class Status(_Read, frozen=True):
    """What a refusal says."""

    message: str = ""
    reason: str = ""
    code: int = 0


class RawList(_Read, frozen=True):
    """A list whose items are still to be read."""

    metadata: Metadata
    items: tuple[msgspec.Raw, ...] | None = None


class RawEvent(_Read, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Bookmark(_Read, frozen=True):
    """An object of which only the version matters."""

    metadata: Metadata

"""One API server over HTTP: bounded calls and watches, and errors by name. The only module that opens connections.

Connections, TLS, proxies and credentials are the official client's (`kubernetes.aio`), by the two calls that all its
generated methods end in. Its models are left out: they take six times as long to read, and drop the fraction of a time
where it is zero, which the server refuses in a Lease. So are its watch, informer and election, which break where ours
may not: no back-off on errors (750 requests a second seen), no notice of a dead connection, a Lease that cannot be
created, a leader that stays one on a server that hangs. It bounds calls by a total only: each has a deadline of ours
around it. What the client costs at each start is in `experiments/k8s_discovery`. What is used is in `k8s.access`, and a
call that is not there is a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from kubernetes.aio import client

from k8s.access import NEEDED, Access
from k8s.credentials import Cluster
from k8s.objects import Status

MAX_LINE_BYTES = 16 << 20
"""An object is at most 1.5 MiB in etcd; an EndpointSlice of a thousand endpoints is about 400 kB."""
MAX_CONNECTIONS = 16
USER_AGENT = "phaseserve-router"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
_API_VERSIONS = {
    "": "api/v1",
    "apps": "apis/apps/v1",
    "autoscaling": "apis/autoscaling/v1",
    "coordination.k8s.io": "apis/coordination.k8s.io/v1",
    "discovery.k8s.io": "apis/discovery.k8s.io/v1",
}
_AUTHENTICATED = ["BearerToken"]
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""Of a connection. ValueError: a line without end, a proxy or a header that cannot be."""
Read = TypeVar("Read")


class ApiError(Exception):
    """The API server refused: `status` is the HTTP status, `reason` its own word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class ApiUnreachableError(Exception):
    """No answer, or none that can be read: refused, reset, timed out, cut off, not from an API server."""


class ApiClient:
    """Calls in one namespace. Every call and every watch has a deadline. Use as an asynchronous context."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self.namespace = cluster, namespace
        self._client: client.ApiClient | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.num_calls = 0

    async def __aenter__(self) -> ApiClient:
        configuration = self._cluster.configuration
        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        configuration.client_session_kwargs = {"read_bufsize": MAX_LINE_BYTES}
        self._client = client.ApiClient(configuration)
        self._client.user_agent = USER_AGENT
        self._refreshing = asyncio.create_task(self._cluster.keep_fresh())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._client is not None
        assert self._refreshing is not None
        self._refreshing.cancel()
        await asyncio.wait([self._refreshing])
        await self._client.close()

    async def call(
        self,
        access: Access,
        answer: type[Read],
        *,
        name: str = "",
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout_s: float,
    ) -> Read:
        """One request, answered within `timeout_s`. Raises `ApiError` or `ApiUnreachableError`."""
        try:
            async with asyncio.timeout(timeout_s), self._open(access, name, query, body, timeout_s) as response:
                raw = await response.read()
        except _FAILURES as error:
            raise _unreachable(error, timeout_s) from error
        return _read(raw, response.status, answer)

    async def watch(self, access: Access, query: Mapping[str, str], timeout_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch until the server ends it. Raises as `call`, also in between."""
        query = {**query, "watch": "true"}
        try:
            async with asyncio.timeout(timeout_s), self._open(access, "", query, None, timeout_s) as response:
                if response.status != 200:
                    _read(await response.read(), response.status, Status)
                async for line in response.content:
                    yield line
        except _FAILURES as error:
            raise _unreachable(error, timeout_s) from error

    @asynccontextmanager
    async def _open(
        self, access: Access, name: str, query: Mapping[str, str] | None, body: Any, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert access in NEEDED, f"{access} is not among the permissions of this room"
        assert self._client is not None
        self.num_calls += 1
        request = await self._client.param_serialize(
            method=_METHODS[access.verb],
            resource_path=_path(access, name),
            path_params={"namespace": self.namespace, "name": name},
            query_params=dict(query or {}),
            header_params={"Accept": JSON, "Content-Type": MERGE_PATCH if access.verb == "patch" else JSON},
            body=body,
            auth_settings=_AUTHENTICATED,
        )
        # Without a total it takes 300 s, which may be less than a watch lasts.
        answer = await self._client.call_api(*request, _request_timeout=timeout_s, _preload_content=False)
        async with answer.response as response:
            yield response


def _path(access: Access, name: str) -> str:
    plural, _, subresource = access.resource.partition("/")
    parts = ["", _API_VERSIONS[access.group], "namespaces", "{namespace}", plural]
    return "/".join([*parts, *filter(None, ("{name}" if name else "", subresource))])


def _unreachable(error: Exception, timeout_s: float) -> ApiUnreachableError:
    if isinstance(error, TimeoutError):
        return ApiUnreachableError(f"no answer within {timeout_s:g} s")
    return ApiUnreachableError(str(error) or type(error).__name__)


def _read(raw: bytes, status: int, answer: type[Read]) -> Read:
    if status >= 400:
        raise refusal(raw, status)
    try:
        return msgspec.json.decode(raw, type=answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ApiUnreachableError(f"an answer that is none: {error}") from error


def refusal(raw: bytes, status: int) -> ApiError:
    """What a `Status` object says; a body that is none (a proxy's) is shown by its beginning."""
    try:
        told = msgspec.json.decode(raw, type=Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ApiError(status, "Unknown", raw[:200].decode(errors="replace"))
    return ApiError(told.code or status, told.reason or "Unknown", told.message)

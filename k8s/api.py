"""One API server over HTTP: bounded calls and watches, and errors by name. The only module that opens connections.

Plain aiohttp and not the `kubernetes` package: five kinds of calls do not need its 126 MB in every image, nor twice the
time and half as much memory again at each start (`experiments/k8s_discovery`), nor its watch and election, which break
where ours may not (no back-off on errors, a lease kept on a server that hangs). What is used is in `k8s.access`, and a
call that is not there is a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from k8s.access import NEEDED, Access
from k8s.credentials import Cluster
from k8s.objects import Status

MAX_LINE_BYTES = 16 << 20
"""An object is at most 1.5 MiB in etcd; an EndpointSlice of a thousand endpoints is about 400 kB."""
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
_API_VERSIONS = {
    "": "api/v1",
    "apps": "apis/apps/v1",
    "autoscaling": "apis/autoscaling/v1",
    "coordination.k8s.io": "apis/coordination.k8s.io/v1",
    "discovery.k8s.io": "apis/discovery.k8s.io/v1",
}
_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}
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
        self._session: aiohttp.ClientSession | None = None
        self.num_calls = 0

    async def __aenter__(self) -> ApiClient:
        connector = aiohttp.TCPConnector(ssl=self._cluster.tls or True, limit=16, keepalive_timeout=30)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=MAX_LINE_BYTES)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._session is not None
        await self._session.close()

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
        content_type = MERGE_PATCH if access.verb == "patch" else JSON
        try:
            async with asyncio.timeout(timeout_s), self._open(access, name, query, body, content_type) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error, timeout_s) from error
        return _read(raw, response.status, answer)

    async def watch(self, access: Access, query: Mapping[str, str], timeout_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch until the server ends it. Raises as `call`, also in between."""
        query = {**query, "watch": "true"}
        try:
            async with asyncio.timeout(timeout_s), self._open(access, "", query, None, JSON) as response:
                if response.status != 200:
                    _read(await response.read(), response.status, Status)
                async for line in response.content:
                    yield line
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a line without end
            raise _unreachable(error, timeout_s) from error

    def _open(self, access: Access, name: str, query: Mapping[str, str] | None, body: Any, content_type: str) -> Any:
        assert access in NEEDED, f"{access} is not among the permissions of this room"
        assert self._session is not None
        self.num_calls += 1
        headers = {"Accept": JSON}
        if token := self._cluster.bearer.token():
            headers["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = msgspec.json.encode(body), content_type
        url = f"{self._cluster.server}/{self._path(access, name)}"
        return self._session.request(
            _METHODS[access.verb], url, params=query, data=data, headers=headers, timeout=aiohttp.ClientTimeout()
        )

    def _path(self, access: Access, name: str) -> str:
        plural, _, subresource = access.resource.partition("/")
        parts = [_API_VERSIONS[access.group], "namespaces", self.namespace, plural]
        return "/".join([*parts, *filter(None, (name, subresource))])


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

"""The `ucx` transport: UCXX (or ucx-py), two-sided tagged messages into memory that the receiver chose beforehand.

With PyPI's libucx it runs on TCP; with one that was built with verbs, on RDMA. `active_transports` says which.
`kvtransfer.ucx_library` imports the library, `kvtransfer.ucx_stream` says what goes over a connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvtransfer import ucx_library
from kvtransfer.interfaces import interface_of
from kvtransfer.protocol import Admit, OnLanded, TransferError
from kvtransfer.sockets import family_of, parse_endpoint
from kvtransfer.ucx_library import UcxContext
from kvtransfer.ucx_receiver import UcxReceiver
from kvtransfer.ucx_settings import apply
from kvtransfer.ucx_stream import (
    ACCEPTED,
    END,
    ENDED,
    MAGIC,
    PUT,
    Staging,
    gather,
    header,
    part,
    segments,
    tag,
)

_CLOSE_DEADLINE_S = 2.0


def is_rdma(transports: frozenset[str]) -> bool:
    """Whether UCX's transports (`tcp`, `rc_mlx5`, `dc_mlx5`, `ud_verbs`, ...) include RDMA."""
    return any(name.startswith(("rc", "dc", "ud", "gga")) for name in transports)


class UcxTransport:
    """`host`: the address to tell senders (UCX listens on every address).

    `environment`: of `ucx_settings.ucx_environment`; what the first transport in a process brings counts.
    """

    scheme = "ucx"

    def __init__(self, host: str, environment: dict[str, str]) -> None:
        self._host = host
        self._environment = environment

    def unavailable(self) -> str | None:
        """Why it cannot be used, or None."""
        apply(self._environment, os.environ)
        try:
            ucx_library.load()
        except (ImportError, OSError) as error:
            return f"neither ucxx nor ucp can be imported: {error}"
        return None

    async def active_transports(self) -> frozenset[str]:
        """What UCX may use here. Raises `TransferError`."""
        apply(self._environment, os.environ)
        context = UcxContext.acquire()
        try:
            return context.active_transports()
        finally:
            await context.release()

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> UcxReceiver:
        """See `Transport`."""
        apply(self._environment, os.environ)
        return UcxReceiver(memory, on_landed, admit, host=self._host)

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> UcxSender:
        """See `Transport`."""
        apply(self._environment, os.environ)
        host, port = parse_endpoint(endpoint, self.scheme)
        context = UcxContext.acquire()
        ucx: Any = None
        try:
            async with asyncio.timeout(deadline_s):
                ucx = await context.dial(host, port)
                await ucx.send(np.frombuffer(MAGIC + token, np.uint8))
                answer = np.zeros(1, np.uint8)
                await ucx.recv(answer)
            if answer.tobytes() != ACCEPTED:
                raise TransferError(f"{endpoint} does not speak this version")
            return UcxSender(context, ucx, _device(context, host))
        except BaseException as error:
            if ucx is not None:
                await context.abort(ucx)
            await context.release()
            if isinstance(error, TimeoutError):
                raise TransferError(f"{endpoint} did not answer within {deadline_s:g} s") from None
            if isinstance(error, OSError | ucx_library.error_type()):
                raise TransferError(f"cannot connect to {endpoint}: {type(error).__name__}: {error}") from error
            raise


def _device(context: UcxContext, host: str) -> str:
    """The configured devices, else the interface that a datagram to `host` would leave from (nothing is sent)."""
    configured = os.environ.get("UCX_NET_DEVICES", "all")
    if configured != "all":
        return configured
    rdma = sorted(name for name in context.active_transports() if is_rdma(frozenset((name,))))
    if rdma:
        return rdma[0]
    try:
        with socket.socket(family_of(host), socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))
            return interface_of(sock.getsockname()[0]) or "unknown"
    except OSError:
        return "unknown"


class UcxSender:
    """Puts over one endpoint."""

    def __init__(self, context: UcxContext, ucx: Any, device: str) -> None:
        self.device = device
        self.transports = context.active_transports()
        self._context = context
        self._ucx = ucx
        self._staging = Staging()
        self._num_puts = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._broken: str | None = None
        self._aborted: asyncio.Task[None] | None = None
        self._closed = False

    def moved(self) -> int | None:
        """Only the end of a put tells."""
        return None

    def unsent(self) -> int:
        """Nothing that is known of."""
        return 0

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """See `BulkSender`."""
        views = [view for view in source if view.nbytes]
        await self._run(header(PUT, slot_id, offset, sum(view.nbytes for view in views), note), views)

    async def close(self) -> None:
        """See `BulkSender`."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                if self._under_way:
                    await asyncio.wait(set(self._under_way))
                await self._run(header(END, bytes(16), 0, 0, b""), [])
                answer = np.zeros(1, np.uint8)
                await self._ucx.recv(answer)
                assert answer.tobytes() == ENDED
        except (TimeoutError, TransferError, ucx_library.error_type()):
            pass  # the receiver counts what arrived; the owner knows what was not acknowledged
        await self._break("the connection was closed")
        if self._under_way:  # UCX still has to tell that they ended, which takes the context's threads
            await asyncio.wait(set(self._under_way), timeout=_CLOSE_DEADLINE_S)
        await self._context.release()

    async def _run(self, head: Any, views: Sequence[memoryview]) -> None:
        """Send one put. The task outlives a cancelled caller until UCX has let go of the source."""
        if self._broken is not None:
            raise TransferError(self._broken)
        number, self._num_puts = self._num_puts, self._num_puts + 1
        task = asyncio.get_running_loop().create_task(self._send(number, head, views))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._break("a put was cancelled")
            await asyncio.wait([task], timeout=_CLOSE_DEADLINE_S)
            raise
        except (TransferError, ucx_library.error_type()) as error:
            await self._break(f"the peer is gone: {type(error).__name__}: {error}")
            raise TransferError(self._broken or "") from error

    async def _send(self, number: int, head: Any, views: Sequence[memoryview]) -> None:
        messages = [self._ucx.send(head)]
        staged = []
        for index, (start, size) in enumerate(segments(sum(view.nbytes for view in views))):
            pieces = part(views, start, size)
            if len(pieces) == 1:
                buffer = np.frombuffer(pieces[0], np.uint8)
            else:
                buffer = self._staging.take(size)
                gather(pieces, buffer)
                staged.append(buffer)
            messages.append(self._ucx.send(buffer, tag=tag(number, index)))
        results = await asyncio.gather(*messages, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if ucx_library.is_closed(self._ucx):
            raise TransferError(self._broken or "the peer is gone")
        for buffer in staged:
            self._staging.give(buffer)

    async def _break(self, reason: str) -> None:
        """Close the endpoint, once; afterwards UCX reads no source any more."""
        if self._aborted is None:
            self._broken = reason
            self._aborted = asyncio.get_running_loop().create_task(self._context.abort(self._ucx))
        await asyncio.shield(self._aborted)

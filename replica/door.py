"""Who may connect to a replica's control port: whoever holds the routers' key. ZeroMQ's ZAP (RFC 27), in this process.

pyzmq's own authenticator for asyncio was left again: of 400 connections in a row it let some wait for ever.
"""

from __future__ import annotations

import asyncio
import hmac

import zmq
import zmq.asyncio
from zmq.utils import z85

from contracts.control_secret import ControlEnd, key_seed

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_NUM_REQUEST_FRAMES = 7


class Door:
    """Answers libzmq about every new connection of `context`. Lives until `close`; needs a running event loop."""

    def __init__(self, context: zmq.asyncio.Context, control_secret: str) -> None:
        self._routers_key = z85.decode(zmq.curve_public(z85.encode(key_seed(control_secret, ControlEnd.ROUTER))))
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)
        self._task = asyncio.create_task(self._answer(), name="door")

    def close(self) -> None:
        """Nobody is answered any more."""
        self._task.cancel()
        self._socket.close()

    async def _answer(self) -> None:
        while True:
            request = await self._socket.recv_multipart()
            is_known = (
                len(request) == _NUM_REQUEST_FRAMES
                and request[5] == b"CURVE"
                and hmac.compare_digest(request[6], self._routers_key)
            )
            status = (b"200", b"OK", b"router") if is_known else (b"400", b"not a router of this fleet", b"")
            await self._socket.send_multipart([_VERSION, request[1], *status, b""])

"""The replica's socket: one ZMQ ROUTER, to which every router connects a DEALER. One message is one frame.

Sending never waits: a router whose queue is full, or whose connection is gone, is reported to the caller.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import cast

import zmq
import zmq.asyncio

from contracts.control_secret import ControlEnd, key_seed
from contracts.errors import ConfigError
from replica.door import Door

MAX_MESSAGE_BYTES = 64 << 20
LINGER_MS = 300


class Delivery(Enum):
    """What became of a frame: handed over, refused by a full queue, or nobody is there."""

    QUEUED = "queued"
    FULL = "full"
    GONE = "gone"


class RouterChannel:
    """Bound on `host:port` (port 0: any free one; `endpoint` says which). Raises `ConfigError` when it cannot bind.

    With a `control_secret` only routers that know it get through, and everything is encrypted.
    """

    def __init__(self, host: str, port: int, *, queued_messages: int, control_secret: str = "") -> None:
        self._context = zmq.asyncio.Context()
        self._door = Door(self._context, control_secret) if control_secret else None
        self._socket = self._context.socket(zmq.ROUTER)
        if control_secret:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, key_seed(control_secret, ControlEnd.REPLICA))
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, queued_messages)
        self._socket.setsockopt(zmq.RCVHWM, queued_messages)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, int(":" in host))
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        try:
            self._socket.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
        except zmq.ZMQError as error:
            if self._door is not None:
                self._door.close()
            self._context.destroy(linger=0)
            raise ConfigError(f"cannot listen on {host}:{port}: {error}", param="port") from error
        self.endpoint = cast(bytes, self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self.malformed = 0

    async def receive(self) -> tuple[bytes, bytes]:
        """The next `(identity, frame)`. Messages of another shape are counted and dropped."""
        while True:
            await asyncio.sleep(0)  # a flood must not keep the other tasks from running
            parts = await self._socket.recv_multipart()
            if len(parts) == 2:
                return parts[0], parts[1]
            self.malformed += 1

    def send(self, identity: bytes, frame: bytes) -> Delivery:
        """Queue one frame for one router, at once or not at all."""
        sending = self._socket.send_multipart((identity, frame), flags=zmq.DONTWAIT)
        error = cast("asyncio.Future[object]", sending).exception()  # done already, because of DONTWAIT
        if error is None:
            return Delivery.QUEUED
        if isinstance(error, zmq.Again):
            return Delivery.FULL
        if isinstance(error, zmq.ZMQError) and error.errno == zmq.EHOSTUNREACH:
            return Delivery.GONE
        raise error

    def close(self) -> None:
        """Close the socket; what is queued has `LINGER_MS` to leave."""
        self._socket.close()
        if self._door is not None:
            self._door.close()
        self._context.term()

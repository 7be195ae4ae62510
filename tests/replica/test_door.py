"""The control port's door: who knows the secret gets through every time, nobody else ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import zmq
import zmq.asyncio
from zmq.utils import z85

from contracts.control_secret import ControlEnd, check_control_secret, key_seed
from contracts.errors import ConfigError
from replica.channel import RouterChannel

SECRET = "long enough to be one"
NUM_CONNECTIONS = 60


def public(seed: bytes) -> bytes:
    return z85.decode(zmq.curve_public(z85.encode(seed)))


def with_keys(socket: zmq.asyncio.Socket, own: bytes, secret: str) -> None:
    socket.setsockopt(zmq.CURVE_SECRETKEY, own)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public(own))
    socket.setsockopt(zmq.CURVE_SERVERKEY, public(key_seed(secret, ControlEnd.REPLICA)))


async def gets_through(prove: Callable[[zmq.asyncio.Socket], None], wait_s: float) -> bool:
    channel = RouterChannel("127.0.0.1", 0, queued_messages=10, control_secret=SECRET)
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    prove(socket)
    socket.connect(channel.endpoint)
    heard = asyncio.create_task(channel.receive())
    socket.send(b"hello", flags=zmq.DONTWAIT)
    done, _ = await asyncio.wait({heard}, timeout=wait_s)
    heard.cancel()
    socket.close()
    context.destroy(linger=0)
    channel.close()
    return bool(done)


async def test_who_knows_the_secret_gets_through_every_time() -> None:
    for _ in range(NUM_CONNECTIONS):
        assert await gets_through(lambda end: with_keys(end, key_seed(SECRET, ControlEnd.ROUTER), SECRET), 10.0)


def a_stranger_who_found_the_replicas_public_key(end: zmq.asyncio.Socket) -> None:
    with_keys(end, bytes(range(32)), SECRET)


def a_replica(end: zmq.asyncio.Socket) -> None:
    with_keys(end, key_seed(SECRET, ControlEnd.REPLICA), SECRET)


def another_fleet(end: zmq.asyncio.Socket) -> None:
    with_keys(end, key_seed("another secret, long too", ControlEnd.ROUTER), "another secret, long too")


def in_the_clear(_end: zmq.asyncio.Socket) -> None:
    pass


@pytest.mark.parametrize("who", [a_stranger_who_found_the_replicas_public_key, a_replica, another_fleet, in_the_clear])
async def test_nobody_else_does(who: Callable[[zmq.asyncio.Socket], None]) -> None:
    assert not await gets_through(who, 0.5)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 characters"):
        check_control_secret("guess me")
    check_control_secret("")


def test_a_secret_may_be_any_bytes_of_the_environment() -> None:
    seeds = {key_seed(secret * 16, ControlEnd.ROUTER) for secret in ("\udcff", "\udcfe", "é", "e")}
    assert len(seeds) == 4

"""The mutual challenge: members agree on keys, everybody else learns nothing and gets nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ConfigError
from kvtransfer.auth import (
    MAX_IDENTITY_BYTES,
    PROOF_BYTES,
    Authenticated,
    AuthenticationFailed,
    Handshake,
    MessageSeal,
    Role,
    authenticate,
    fleet_key,
)
from kvtransfer.protocol import TOKEN_BYTES

KEY = fleet_key("correct horse battery staple")
OTHER = fleet_key("correct horse battery stable")


def run(
    initiator: Handshake, responder: Handshake, tamper: Callable[[int, bytes], bytes] = lambda _, message: message
) -> tuple[list[bytes], Authenticated, Authenticated]:
    """A whole handshake; `tamper` changes the k-th message on its way."""
    wire: list[bytes] = []
    message = initiator.start()
    sides = [responder, initiator]
    while message is not None:
        wire.append(message)
        message = sides[0].receive(tamper(len(wire) - 1, message))
        sides.reverse()
    assert initiator.result is not None
    assert responder.result is not None
    return wire, initiator.result, responder.result


def pair(key: bytes = KEY, other: bytes = KEY) -> tuple[Handshake, Handshake]:
    return Handshake(Role.INITIATOR, key, b"p-0"), Handshake(Role.RESPONDER, other, b"d-0")


@given(st.binary(max_size=MAX_IDENTITY_BYTES), st.binary(max_size=64))
def test_members_agree(mine: bytes, theirs: bytes) -> None:
    _, left, right = run(Handshake(Role.INITIATOR, KEY, mine), Handshake(Role.RESPONDER, KEY, theirs))
    assert (left.peer_identity, right.peer_identity) == (theirs, mine)
    assert left.session_key == right.session_key
    assert left.bulk_token == right.bulk_token
    assert len(left.bulk_token) == TOKEN_BYTES
    assert left.bulk_token != left.session_key


def test_every_session_has_its_own_keys() -> None:
    tokens = {run(*pair())[1].bulk_token for _ in range(20)}
    assert len(tokens) == 20


def test_another_secret_fails_at_the_responder_which_then_says_nothing() -> None:
    initiator, responder = pair(KEY, OTHER)
    challenge = responder.receive(initiator.start() or b"")
    proof = initiator.receive(challenge or b"")
    with pytest.raises(AuthenticationFailed, match="another fleet secret"):
        responder.receive(proof or b"")
    assert responder.result is None
    with pytest.raises(AuthenticationFailed):
        responder.receive(proof or b"")


def test_a_false_responder_is_noticed() -> None:
    initiator, _ = pair()
    initiator.start()
    initiator.receive(Handshake(Role.INITIATOR, OTHER, b"d-0").start() or b"")
    with pytest.raises(AuthenticationFailed):
        initiator.receive(bytes(PROOF_BYTES))


def test_a_recorded_handshake_cannot_be_replayed() -> None:
    wire, _, _ = run(*pair())
    responder = Handshake(Role.RESPONDER, KEY, b"d-0")
    responder.receive(wire[0])
    with pytest.raises(AuthenticationFailed):
        responder.receive(wire[2])


def test_reflection_fails() -> None:
    initiator, _ = pair()
    with pytest.raises(AuthenticationFailed, match="own nonce"):
        initiator.receive(initiator.start() or b"")
    victim, mirror = pair()
    mirror_hello = mirror.receive(victim.start() or b"")
    own_proof = victim.receive(mirror_hello or b"")
    with pytest.raises(AuthenticationFailed):
        victim.receive(own_proof or b"")


@given(st.integers(0, 3), st.integers(0, 200), st.integers(1, 255))
def test_a_changed_message_never_authenticates(step: int, position: int, flip: int) -> None:
    def change(message: bytes) -> bytes:
        place = position % len(message)
        return message[:place] + bytes([message[place] ^ flip]) + message[place + 1 :]

    initiator, responder = pair()
    with pytest.raises(AuthenticationFailed):
        run(initiator, responder, lambda number, message: change(message) if number == step else message)
    assert initiator.result is None
    assert responder.result is None or step == 3


@pytest.mark.parametrize("message", [b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"phaseserve-auth-1"])
def test_strangers_words(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        Handshake(Role.RESPONDER, KEY, b"d-0").receive(message)


def test_the_secret_is_demanded() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        fleet_key("")
    with pytest.raises(ConfigError, match="at least 16"):
        fleet_key("short")
    assert fleet_key("correct horse battery staple") == KEY != OTHER


def test_seals_notice_change_repetition_loss_and_direction() -> None:
    _, left, right = run(*pair())
    out, back = left.seals()
    _, into = right.seals()
    first, second = out.seal(b"one"), out.seal(b"two")
    assert into.open(first) == b"one"
    for wrong in (first, second[:-1] + bytes([second[-1] ^ 1]), b""):
        with pytest.raises(AuthenticationFailed):
            into.open(wrong)
    with pytest.raises(AuthenticationFailed):
        back.open(first)
    skipped = MessageSeal(b"k" * 32)
    skipped.seal(b"lost")
    with pytest.raises(AuthenticationFailed):
        MessageSeal(b"k" * 32).open(skipped.seal(b"kept"))


async def test_over_a_channel() -> None:
    to_right: asyncio.Queue[bytes] = asyncio.Queue()
    to_left: asyncio.Queue[bytes] = asyncio.Queue()
    initiator, responder = pair()
    async with asyncio.timeout(5.0):
        left, right = await asyncio.gather(
            authenticate(initiator, to_right.put, to_left.get), authenticate(responder, to_left.put, to_right.get)
        )
    assert left.session_key == right.session_key
    assert to_right.empty()
    assert to_left.empty()

"""Who may talk to the data plane: a mutual challenge over one secret that the whole fleet shares. No I/O, no clock.

Four messages, HMAC-SHA256, key derived from the secret; the side that dialled proves itself first, so that a stranger
who dials learns no digest that it could test guesses of the secret against:

    initiator -> responder   nonce, identity
    responder -> initiator   nonce, identity
    initiator -> responder   proof = HMAC(key, "initiator" + transcript)
    responder -> initiator   proof = HMAC(key, "responder" + transcript)

The transcript is the hash of version, both nonces and both identities, so neither proof fits another connection,
another role or another identity: a recorded handshake cannot be replayed and a reflected one does not verify. Both
sides derive the session's key from the same transcript, and from it the token which the session's bulk connections
present, and one key per direction for sealing control messages (`MessageSeal`).

What it does not do: hide anything. Somebody who can read the wire sees KV and can use the bulk token as long as its
session lives; networks where that matters need TLS (`kvtransfer.tcp`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from contracts.errors import ConfigError
from kvtransfer.protocol import TransferError

VERSION = b"phaseserve-auth-1"
NONCE_BYTES = 32
PROOF_BYTES = 32
SEAL_BYTES = 16
MAX_IDENTITY_BYTES = 4096
MAX_HANDSHAKE_MESSAGE_BYTES = len(VERSION) + NONCE_BYTES + MAX_IDENTITY_BYTES
MIN_SECRET_CHARS = 16


class AuthenticationFailed(TransferError):
    """The other side did not prove that it knows the fleet's secret, or broke the handshake. Says which."""

    code = "authentication_failed"


class Role(StrEnum):
    """Who dialled."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


def fleet_key(secret: str) -> bytes:
    """The 32-byte key of a fleet. Raises `ConfigError` for a secret that could be guessed."""
    if len(secret) < MIN_SECRET_CHARS:
        raise ConfigError(
            f"the fleet's secret has {len(secret)} characters, at least {MIN_SECRET_CHARS} are needed", param="secret"
        )
    return hmac.digest(b"phaseserve fleet", secret.encode(), "sha256")


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The outcome: the peer's identity is the peer's own word, vouched for by the secret."""

    role: Role
    peer_identity: bytes
    session_key: bytes
    bulk_token: bytes
    """32 bytes; see `kvtransfer.protocol.Admit`."""

    def seals(self) -> tuple[MessageSeal, MessageSeal]:
        """Seals for outgoing and for incoming control messages, both at their first message."""
        keys = {role: hmac.digest(self.session_key, b"seal " + role.encode(), "sha256") for role in Role}
        peer = Role.RESPONDER if self.role is Role.INITIATOR else Role.INITIATOR
        return MessageSeal(keys[self.role]), MessageSeal(keys[peer])


class MessageSeal:
    """Authenticates the messages of one direction, in order: a changed, repeated, dropped or moved one is noticed."""

    __slots__ = ("_key", "_next")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._next = 0

    def seal(self, message: bytes) -> bytes:
        """The message with its 16-byte tag behind it."""
        return message + self._tag(message)

    def open(self, sealed: bytes) -> bytes:
        """The message of `seal`. Raises `AuthenticationFailed`; then the connection must be ended."""
        message, tag = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
        number = self._next
        if not hmac.compare_digest(self._tag(message), tag):
            raise AuthenticationFailed(f"control message {number} was changed, repeated or lost on the way")
        return message

    def _tag(self, message: bytes) -> bytes:
        number = self._next.to_bytes(8, "big")
        self._next += 1
        return hmac.digest(self._key, number + message, "sha256")[:SEAL_BYTES]


class Handshake:
    """One side of one handshake. Feed it the peer's messages (framed by the channel), send what it answers.

    `identity`: at most 4096 bytes that the peer should believe. `nonce`: 32 fresh random bytes, or None to draw them.
    """

    def __init__(self, role: Role, key: bytes, identity: bytes, nonce: bytes | None = None) -> None:
        if len(identity) > MAX_IDENTITY_BYTES:
            raise ValueError(f"an identity of {len(identity)} bytes, at most {MAX_IDENTITY_BYTES} are allowed")
        self.role = role
        self._key = key
        self._identity = identity
        self._nonce = nonce if nonce is not None else secrets.token_bytes(NONCE_BYTES)
        if len(self._nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(self._nonce)}")
        self._peer: tuple[bytes, bytes] | None = None
        self._broken = False
        self._result: Authenticated | None = None

    @property
    def result(self) -> Authenticated | None:
        """Set once the peer has proved itself (and, for the responder, once its own proof is ready to be sent)."""
        return self._result

    def start(self) -> bytes | None:
        """The first message of the initiator; None for the responder."""
        return self._hello() if self.role is Role.INITIATOR else None

    def receive(self, message: bytes) -> bytes | None:
        """The answer to the peer's next message, None when there is none. Raises `AuthenticationFailed`, for good."""
        if self._broken or self._result is not None:
            raise AuthenticationFailed("a message after the handshake ended")
        self._broken = True  # until this message turns out right: an exception leaves it so
        if self._peer is None:
            self._peer = self._read_hello(message)
            answer: bytes | None = self._proof(self.role) if self.role is Role.INITIATOR else self._hello()
        else:
            self._check_proof(message)
            answer = self._proof(self.role) if self.role is Role.RESPONDER else None
            self._result = self._derive()
        self._broken = False
        return answer

    def _hello(self) -> bytes:
        return VERSION + self._nonce + self._identity

    def _read_hello(self, message: bytes) -> tuple[bytes, bytes]:
        if len(message) > MAX_HANDSHAKE_MESSAGE_BYTES or len(message) < len(VERSION) + NONCE_BYTES:
            raise AuthenticationFailed(f"a first message of {len(message)} bytes: not a PhaseServe data plane")
        if not message.startswith(VERSION):
            raise AuthenticationFailed(f"the peer does not speak {VERSION.decode()}")
        nonce = message[len(VERSION) : len(VERSION) + NONCE_BYTES]
        if hmac.compare_digest(nonce, self._nonce):
            raise AuthenticationFailed("the peer sent our own nonce back")
        return nonce, message[len(VERSION) + NONCE_BYTES :]

    def _check_proof(self, message: bytes) -> None:
        peer = Role.RESPONDER if self.role is Role.INITIATOR else Role.INITIATOR
        if not hmac.compare_digest(self._proof(peer), message):
            raise AuthenticationFailed("the peer's proof is wrong: it has another fleet secret, or none")

    def _transcript(self) -> bytes:
        assert self._peer is not None
        mine, theirs = (self._nonce, self._identity), self._peer
        first, second = (mine, theirs) if self.role is Role.INITIATOR else (theirs, mine)
        digest = hashlib.sha256()
        for part in (VERSION, *first, *second):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()

    def _proof(self, role: Role) -> bytes:
        return hmac.digest(self._key, b"proof " + role.encode() + self._transcript(), "sha256")

    def _derive(self) -> Authenticated:
        assert self._peer is not None
        session_key = hmac.digest(self._key, b"session " + self._transcript(), "sha256")
        return Authenticated(
            role=self.role,
            peer_identity=self._peer[1],
            session_key=session_key,
            bulk_token=hmac.digest(session_key, b"bulk", "sha256"),
        )


async def authenticate(
    handshake: Handshake, send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[bytes]]
) -> Authenticated:
    """Run a handshake over a channel of whole messages; the caller bounds it with `asyncio.timeout`.

    `receive` must refuse messages over `MAX_HANDSHAKE_MESSAGE_BYTES`. Raises `AuthenticationFailed`.
    """
    message = handshake.start()
    while True:
        if message is not None:
            await send(message)
        if handshake.result is not None:
            return handshake.result
        message = handshake.receive(await receive())

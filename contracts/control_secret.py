"""One secret for the control plane: what both ends of a connection derive from it. Pure; no sockets.

With it every control connection is encrypted and both ends prove that they know it (CURVE, RFC 26 of ZeroMQ): replicas
hold one derived Curve25519 key, routers another, and each end accepts only the other's. Without it the control plane is
plain, for one machine or a network of its own.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

from contracts.errors import ConfigError

CONTROL_SECRET_VARIABLE = "PHASESERVE_CONTROL_SECRET"
MIN_CONTROL_SECRET_CHARS = 16


class ControlEnd(StrEnum):
    """Which end of a control connection."""

    REPLICA = "replica"
    ROUTER = "router"


def key_seed(secret: str, end: ControlEnd) -> bytes:
    """The 32 bytes of the secret key of this end. Different for each end, and for any other use of the same secret."""
    return hashlib.blake2b(f"control-plane-1 {end}".encode(), key=_stretched(secret), digest_size=32).digest()


def check_control_secret(secret: str) -> None:
    """Raises `ConfigError`: one that is too short is guessed. Empty means none."""
    if secret and len(secret) < MIN_CONTROL_SECRET_CHARS:
        raise ConfigError(
            f"the control plane's secret must have at least {MIN_CONTROL_SECRET_CHARS} characters, the same for router"
            f" and replicas: set {CONTROL_SECRET_VARIABLE} in the environment",
            param="control_secret",
        )


def _stretched(secret: str) -> bytes:
    raw = secret.encode(errors="surrogateescape")  # bytes of an environment that are no text
    return hashlib.blake2b(raw, digest_size=64).digest()

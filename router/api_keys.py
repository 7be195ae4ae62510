"""Who may ask: whoever sends one of the API keys, or anybody where there are none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from contracts.errors import Unauthorized


class ApiKeys:
    """Keys are kept and compared as hashes, so that neither memory nor the time of an answer tells one."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = frozenset(map(_digest, keys))

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises `Unauthorized` when keys are wanted and the request brings none of them."""
        if not self._digests:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("an API key is wanted: Authorization: Bearer ...")
        if _digest(token.strip()) not in self._digests:
            raise Unauthorized("this API key is not known here")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()

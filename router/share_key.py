"""Whose fair share a request is taken from: its API key, hashed, or the user that the body names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

FairShareBy = Literal["api_key", "user", "none"]
LONGEST_USER = 64


def share_key(headers: Mapping[str, str], user: str, by: FairShareBy) -> str:
    """The key of one request, empty for the common share.

    "api_key": of `Authorization: Bearer`, else of `user`; "user": of `user` alone, which a client may choose as it
    likes; "none": all share alike. An API key is never kept or shown, only a hash of it (16 hexadecimal digits, as
    `sha256sum` begins), by which `cluster.fairness.weights` names it too.
    """
    if by == "none":
        return ""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if by == "api_key" and scheme.lower() == "bearer" and token.strip():
        return f"key:{_hash(token.strip())}"
    if not user:
        return ""
    user = user.encode("utf-8", "replace").decode("utf-8")  # half characters could not be shown
    return f"user:{user}" if len(user) <= LONGEST_USER else f"user:{_hash(user)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

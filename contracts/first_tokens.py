"""What the sender of a sequence's KV commits with: the output tokens it has sampled, for the receiver to go on from."""

from __future__ import annotations

import msgspec

from contracts.batch import TokenLogprobs
from contracts.errors import ProtocolError


class FirstTokens(msgspec.Struct, frozen=True, array_like=True):
    """Output tokens of the sender (one), and their log probabilities if they were asked for."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FirstTokens)


def encode_first_tokens(first: FirstTokens) -> bytes:
    """The payload of a commit."""
    return _encoder.encode(first)


def decode_first_tokens(payload: bytes) -> FirstTokens:
    """The payload of a commit. Raises `ProtocolError`."""
    try:
        first = _decoder.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not the first tokens of a sequence: {error}") from error
    if not first.token_ids or (first.logprobs and len(first.logprobs) != len(first.token_ids)):
        raise ProtocolError("a hand-off without its first token, or with logprobs of other tokens")
    return first

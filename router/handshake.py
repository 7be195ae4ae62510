"""Whether a replica that answered may serve this router's model."""

from __future__ import annotations

import logging

from contracts import wire
from contracts.model import ModelSpec

log = logging.getLogger("phaseserve.router")


def why_not_served(welcome: wire.Welcome, spec: ModelSpec) -> str | None:
    """None when the replica fits, else the reason. A fake replica fits any model with its vocabulary."""
    theirs = welcome.identity.model
    if welcome.protocol != wire.PROTOCOL_VERSION:
        return f"it speaks protocol {welcome.protocol}, not {wire.PROTOCOL_VERSION}"
    if theirs.vocab_size != spec.vocab_size:
        return f"it serves {theirs.name} with {theirs.vocab_size} tokens, not {spec.name} with {spec.vocab_size}"
    if theirs.family == "fake":  # tokens without a model, for tests of everything else
        log.warning("replica %s is a fake: it makes its tokens up", welcome.identity.replica_id)
        return None
    if theirs.digest != spec.digest:
        return f"it serves {theirs.name} ({theirs.digest[:12]}), not {spec.name} ({spec.digest[:12]})"
    return None

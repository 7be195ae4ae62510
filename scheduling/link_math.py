"""The cost of a KV hand-off over a link, as pure formulas."""

from __future__ import annotations

import math

from contracts.handoff import LinkView

MIN_RATE_SHARE = 0.1
"""However uncertain a measured link is, this share of its estimate is counted on."""


def exposed_transfer_s(num_bytes: float, num_layers: int, prefill_s: float, bytes_per_s: float) -> float:
    """The part of a transfer, in seconds, that outlasts the prefill behind which it is streamed, latency left out.

    A two-stage pipeline of equal layers: computing one takes `t = prefill_s / num_layers`, sending it
    `x = num_bytes / (num_layers * bytes_per_s)`, and it is sent once it is computed and its predecessor is sent. The
    last layer can never be hidden: `x + (num_layers - 1) * max(0, x - t)`.
    """
    send_s = num_bytes / (num_layers * bytes_per_s)
    return send_s + (num_layers - 1) * max(0.0, send_s - prefill_s / num_layers)


def queued_transfer_s(num_bytes: float, bytes_ahead: float, work_s: float, bytes_per_s: float) -> float:
    """How long, after `work_s` of prefill (that of prompts ahead included), a link still carries `num_bytes` and what
    is ahead of them, when it never rests. At least 0."""
    return max(0.0, (bytes_ahead + num_bytes) / bytes_per_s - work_s)


def cautious_rate(link: LinkView, age_s: float, caution: float, spread_per_s: float) -> float | None:
    """Bytes per second to count on: the estimate less `caution` times its spread, which grows with age.

    None for a link that was never measured.
    """
    if link.bytes_per_s is None:
        return None
    spread = math.hypot(link.spread, spread_per_s * age_s)
    return link.bytes_per_s * max(MIN_RATE_SHARE, 1.0 - caution * spread)


def is_sustainable(num_bytes: float, prefill_s: float, bytes_per_s: float) -> bool:
    """Whether prompts prefilled without pause make no more KV than the link carries away."""
    return num_bytes <= prefill_s * bytes_per_s

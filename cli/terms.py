"""What the words of a simulated run's figures mean, for help texts and above the tables."""

from __future__ import annotations

CLOCKS = (
    "Switch wait: from a request's first token to its first decode step. Usual clock: it counts into TPOT.",
    "EcoServe's clock: it counts into TTFT, and TPOT begins after it. Exposed transfer: the part of it spent waiting",
    "for KV.",
)
LATENCIES = (
    "TTFT: from arrival to the first token. TPOT: mean gap between a request's tokens after that. ITL: each such gap.",
    *CLOCKS,
)
ATTAINED = ("Attained: share of requests within both targets; one that was refused is not.",)


def goodput_terms(share: float) -> tuple[str, ...]:
    """What goodput is, at this share of requests within both targets."""
    return (
        f"Goodput: the highest scanned rate, in requests/s, with {100.0 * share:g} % of requests within both targets;"
        " >= where that is the",
        "highest rate of the scan: it may be more. Dips: lower rates without that share.",
    )

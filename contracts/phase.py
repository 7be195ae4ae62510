"""Phase and role: what a step does, and what a replica is allowed to do. Both are data, never a class tree."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What one step of a replica computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class Role(StrEnum):
    """What a replica is allowed to do now. Every replica holds the full model, so a role is a setting."""

    PREFILL = "prefill"
    DECODE = "decode"
    ALTERNATING = "alternating"
    MIXED = "mixed"


class Layout(StrEnum):
    """Where and when the two phases of one request run."""

    COLOCATED = "colocated"
    PHASED = "phased"
    DISAGGREGATED = "disaggregated"

"""Checks that the configurations of this room share. Each raises `ConfigError` naming the setting."""

from __future__ import annotations

from contracts.errors import ConfigError

MOST = 1e12
"""Far beyond it sums and products of settings would be endless."""


def require(holds: bool, name: str, rule: str) -> None:
    """Raise unless `holds`: the setting `name` `rule`."""
    if not holds:
        raise ConfigError(f"{name} {rule}", param=name)


def require_positive(value: float, name: str) -> None:
    """Raise unless `value` is above 0, and a number that can be counted with."""
    require(value > 0.0, name, "must be positive")
    require(value <= MOST, name, f"must be at most {MOST:g}")

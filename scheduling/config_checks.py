"""Checks that the configurations of this room share. Each raises `ConfigError` naming the setting."""

from __future__ import annotations

from contracts.errors import ConfigError


def require(holds: bool, name: str, rule: str) -> None:
    """Raise unless `holds`: the setting `name` `rule`."""
    if not holds:
        raise ConfigError(f"{name} {rule}", param=name)

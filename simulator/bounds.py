"""Bounds of settings: a number that is none, or beyond all sense, is refused by its name before anything runs.

A comparison that NaN would pass does not stand here, and no number is so large or so small that a run would not end.
"""

from __future__ import annotations

from contracts.errors import ConfigError

LONGEST_S = 366 * 86_400.0
"""Of a run, and of all that happens in it."""
LONGEST_STEP_S = 3600.0
"""Of a step of one token, and of each of the times that it is made of."""
SHORTEST_S = 0.001
"""Of what happens again and again without anybody asking for it."""
COUNTLESS = 10**12
"""Of things whose number is bound elsewhere, together with others."""
LONGEST_NAME = 200
MOST_BYTES_S = 1e15
"""Of a link. Far beyond it the end of a flow is lost in rounding."""


def bound(name: str, value: float, least: float = 0.0, most: float = LONGEST_S, *, above: bool = False) -> None:
    """`least` (not it itself, with `above`) to `most`. Raises `ConfigError` with name, bounds and value."""
    if least <= value <= most and not (above and value == least):
        return
    if (least, most) == (0.0, 1.0):
        must = "lie above 0 and not above 1" if above else "be between 0 and 1"
    elif least == 0.0:
        must = f"be positive, at most {_told(most)}" if above else f"not be negative, nor above {_told(most)}"
    else:
        must = f"be at least {_told(least)}, at most {_told(most)}"
    raise ConfigError(f"{name} must {must}, but is {_told(value)}", param=name)


def bound_all(
    owner: object, where: str, *names: str, least: float = 0.0, most: float = LONGEST_S, above: bool = False
) -> None:
    """`bound` for these fields of `owner`, each called `<where><name>`."""
    for name in names:
        bound(f"{where}{name}", getattr(owner, name), least, most, above=above)


def check_name(setting: str, name: str) -> None:
    """Raises `ConfigError` for a name that cannot stand in a line of a table."""
    if not name.isprintable() or len(name) > LONGEST_NAME:
        raise ConfigError(f"{setting} must be of printable characters, at most {LONGEST_NAME}", param=setting)


def _told(value: float) -> str:
    """Short, whatever it is: a whole number may have more digits than a float can hold."""
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"about {'-' if value < 0 else ''}10^{len(str(abs(value))) - 1}"
    return f"{value:g}"

"""What can be set about macro instances: the alternating replicas that take turns, and how they split and merge."""

from __future__ import annotations

import msgspec

from scheduling.config_checks import require


class MacroConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of macro instances (EcoServe, OSDI'26, §3.4) and when they change. Times in seconds.

    Above `most` (N_u) members a macro instance splits into N_u + 1 - N_l and N_l, two that together have N_u merge;
    `least` is N_l. Because those two flap, a merge waits until it could have been made for `cooldown_s`, and a split
    until as long after the last merge. Requests stay with the macro instance that took the last one while another one
    gains them less than `stay` of their TTFT target.
    With `scattered` those whose turn it is not are tried in no order, to see what the cyclic one is worth.
    A change of the number of replicas is proposed at most every `propose_every_s`, from means over `window_s`.
    """

    least: int = 6
    most: int = 11
    cooldown_s: float = 30.0
    stay: float = 0.1
    window_s: float = 30.0
    propose_every_s: float = 60.0
    scattered: bool = False

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        require(self.least >= 1, "macro.least", "must be at least 1")
        require(self.most >= 2 * self.least - 1, "macro.most", "must be at least 2 * macro.least - 1")
        require(self.stay >= 0.0, "macro.stay", "must not be negative")
        for name in ("cooldown_s", "window_s", "propose_every_s"):
            require(getattr(self, name) > 0.0, f"macro.{name}", "must be positive")

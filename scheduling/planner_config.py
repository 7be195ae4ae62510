"""What can be set about the fleet planner, which gives replicas their roles."""

from __future__ import annotations

import msgspec

from scheduling.config_checks import require


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fleet planner (`scheduling.fleet_planner`). Times in seconds. Off, roles change only on demand.

    Every `every_s` the best role mix is computed from the last `window_s` of arrivals, or from four times as long while
    nothing changes. It is approached when it would
    carry `gain` times what the present one does (1.2: a fifth more), in `confirm` evaluations in a row, one replica at
    a time, at least `change_every_s` apart and none before the last one says its new role. For `hold_s` after a mix was
    reached no other is looked for, unless `drastic` times what it carries is asked for (a link that fell).

    Below the share `comfort` of what the present mix carries nothing is gained by another one. Above the share
    `near_limit`, or with more prefill queued than the TTFT target has time for, a gain of `any_gain` is worth a change,
    too. Where `any_gain` is certain, however the load may be within the error of its estimate, the change begins at
    once; before a whole window was seen nothing else is believed but a gain of `drastic`.

    A change also costs: prefill replicas keep the streams they had until those end. It must bring in more than that
    within `pays_within_s`, or within the time that lay between the last changes, if that is less. Where it is cheaper
    to compute those streams again, they go on at decode replicas (not with `on_handoff_failure` "fail").
    """

    enabled: bool = False
    every_s: float = 2.0
    window_s: float = 15.0
    gain: float = 1.2
    confirm: int = 2
    change_every_s: float = 0.2
    hold_s: float = 10.0
    comfort: float = 0.8
    near_limit: float = 0.9
    any_gain: float = 1.1
    drastic: float = 2.0
    pays_within_s: float = 80.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("every_s", "window_s", "change_every_s", "hold_s", "pays_within_s"):
            require(getattr(self, name) > 0.0, f"planner.{name}", "must be positive")
        for name in ("gain", "any_gain", "drastic"):
            require(getattr(self, name) >= 1.0, f"planner.{name}", "must be at least 1")
        require(self.comfort >= 0.0, "planner.comfort", "must not be negative")
        require(self.near_limit >= self.comfort, "planner.near_limit", "must be at least planner.comfort")
        require(self.confirm >= 1, "planner.confirm", "must be at least 1")

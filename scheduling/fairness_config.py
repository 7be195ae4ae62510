"""What can be set about fair shares between the keys that requests come with."""

from __future__ import annotations

import msgspec

from scheduling.config_checks import require


class FairnessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deficit round robin over keys, in predicted seconds of service.

    Each round gives every waiting key `quantum_s` times its weight (1 unless in `weights`). Accounts of keys
    without requests are forgotten after `forget_s`; at most `max_keys` are kept apart, further ones share one account.
    `backlog_share` of the tightest TTFT target of the other keys is what prompts that replicas have yet to compute may
    amount to before a key that holds more than its part of them has to wait at the router.
    """

    enabled: bool = True
    quantum_s: float = 0.5
    weights: dict[str, float] = {}
    forget_s: float = 60.0
    max_keys: int = 1024
    backlog_share: float = 0.05

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("quantum_s", "forget_s", "backlog_share"):
            require(getattr(self, name) > 0.0, f"fairness.{name}", "must be positive")
        require(self.max_keys >= 1, "fairness.max_keys", "must be at least 1")
        require(all(weight > 0.0 for weight in self.weights.values()), "fairness.weights", "must be positive")

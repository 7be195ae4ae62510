"""How long KV blocks are held for another replica: a pure function of bytes and measured rates."""

from __future__ import annotations

from scheduling.config import ReplicaCoreConfig


def receiver_lease_s(config: ReplicaCoreConfig, expected_s: float, num_bytes: int, bytes_per_s: float) -> float:
    """How long the receiver waits for the next sign of life.

    `kv_lease_factor` times what the sender needs (`expected_s`) and the bytes that are to come need on the link,
    between `kv_lease_min_s` and `kv_lease_max_s`; the longest where the rate is not known (0).
    """
    if bytes_per_s <= 0.0:
        return config.kv_lease_max_s
    wanted = config.kv_lease_factor * (expected_s + num_bytes / bytes_per_s)
    if not wanted < config.kv_lease_max_s:
        return config.kv_lease_max_s
    return max(config.kv_lease_min_s, wanted)


def sender_hold_s(config: ReplicaCoreConfig, num_bytes: int, bytes_per_s: float | None) -> float:
    """How long the sender keeps computed KV for a receiver that does not acknowledge it.

    Never shorter than the receiver's longest lease, so that the receiver, which sees bytes arrive, gives up first;
    `kv_lease_factor` times what all `num_bytes` under way on the link need where that is more.
    """
    if bytes_per_s is None or bytes_per_s <= 0.0:
        return config.kv_lease_max_s
    return max(config.kv_lease_max_s, config.kv_lease_factor * num_bytes / bytes_per_s)

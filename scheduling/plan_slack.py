"""The slack rule over a replica's view: how long a prefill window may hold up its running streams."""

from __future__ import annotations

from contracts.views import ReplicaView
from scheduling.config import SlackRule


def allowed_slack_s(view: ReplicaView, rule: SlackRule, quantile: float) -> float | None:
    """Seconds that `rule` lets a prefill window take from the running streams; None when none is running.

    `min` protects every stream, `mean` is EcoServe's Algorithm 1 (OSDI'26), `max` its released artifact. The view's
    slack is the replica's own account of all its streams, so a stream that began decoding inside the current window
    is never overlooked. View and backlog age together (a second of prefill takes a second off both), so neither is
    corrected for the age of the view.
    """
    if view.running == 0 or not view.slack_quantiles_s:
        return None
    if rule == "mean":
        return view.slack_mean_s
    level = {"min": 0.0, "max": 1.0}.get(rule, quantile)
    return interpolated_quantile(view.slack_quantiles_s, level)


def interpolated_quantile(values: tuple[float, ...], level: float) -> float:
    """Value at `level` (0 to 1) between evenly spaced quantiles, linearly interpolated. `values` is not empty."""
    position = min(max(level, 0.0), 1.0) * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)

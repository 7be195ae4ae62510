"""The slack rule over a replica's view: how long a prefill window may hold up its running streams."""

from __future__ import annotations

from contracts.views import ReplicaView


def allowed_slack_s(view: ReplicaView, level: float | None) -> float | None:
    """Seconds that a prefill window may take from the running streams by the quantile `level` of their slack (0: the
    tightest) or, None, by the mean; None when none is running.

    The view's slack is the replica's own account of all its streams, so that one that began decoding inside the current
    window is never overlooked. View and backlog age together (a second of prefill takes a second off both), so that
    neither is corrected for the age of the view.
    """
    if view.running == 0 or not view.slack_quantiles_s:
        return None
    if level is None:
        return view.slack_mean_s
    if level == 0.0:
        return view.slack_quantiles_s[0]
    return interpolated_quantile(view.slack_quantiles_s, level)


def interpolated_quantile(values: tuple[float, ...], level: float) -> float:
    """Value at `level` (0 to 1) between evenly spaced quantiles, linearly interpolated. `values` is not empty."""
    position = min(max(level, 0.0), 1.0) * (len(values) - 1)
    below = int(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)

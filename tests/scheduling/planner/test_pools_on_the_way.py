"""Placement in pools that have just been built, while streams of the earlier role still run on the prefill replicas."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import ClusterAction, Dispatch
from contracts.phase import Layout, Role
from contracts.request import Slo

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def dispatched(actions: list[ClusterAction]) -> list[Dispatch]:
    return [action for action in actions if isinstance(action, Dispatch)]


def pool(cluster: Any, **prefill: Any) -> Any:
    core = cluster.core()
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=(cluster.link("d", 1e9),), **prefill), 0.0)
    return core


def test_prefill_beside_guarded_streams_is_predicted_to_take_longer(cluster: Any) -> None:
    predicted = []
    for streams in (0, 1):
        view = {"running": streams, "guarded": streams, "decode_step_s": 0.025 * streams}
        core = pool(cluster, **view, slack_quantiles_s=(0.0,) * 11 * streams)
        asked = cluster.arrived("r", 500, slo=SLO, layout=Layout.DISAGGREGATED)
        (found,) = dispatched(core.handle(asked, 0.0))
        predicted.append(found.plan.prediction.ttft_s)
    # 0.5 s of prefill; with a decode step of 25 ms in each 50 ms it takes twice as long, and half a step goes before
    assert predicted[0] == pytest.approx(0.5, rel=0.05)
    assert predicted[1] == pytest.approx(1.0, rel=0.05)


def test_who_will_be_late_queues_behind_nobody(cluster: Any) -> None:
    """Else whoever comes after it would be late, too, and so on for as long as requests come."""
    core = pool(cluster)
    asked = [cluster.arrived(f"r{index}", 1500, slo=SLO, layout=Layout.DISAGGREGATED) for index in range(3)]
    assert len(dispatched(core.handle(asked[0], 0.0))) == 1
    assert dispatched(core.handle(asked[1], 0.0)) == []
    short = cluster.arrived("s", 100, slo=SLO, layout=Layout.DISAGGREGATED)
    assert len(dispatched(core.handle(short, 0.0))) == 1, "one that is in time goes past those that wait"

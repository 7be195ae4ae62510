"""Runs whose answer is known: a queue with fixed service, one stream, the two-stage pipeline of a hand-off."""

from __future__ import annotations

import msgspec
import pytest

from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig
from simulator.arrivals import Gamma
from simulator.cost import Fitted
from simulator.lengths import Constant
from simulator.observer import RouterTimes
from simulator.run import simulate
from simulator.scenario import KVShape, Scenario
from simulator.scenarios import small

SERVICE_S = 0.1
PROMPT = 512
NO_WIRE = RouterTimes(message_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5])
def test_prompts_alone_wait_as_in_an_m_d_1_queue(load: float) -> None:
    """Mean wait of M/D/1 (Pollaczek and Khinchine): load * service / (2 * (1 - load))."""
    scenario = small(
        mixed=1,
        rate=load / SERVICE_S,
        num_requests=5000,
        prompt=Constant(tokens=PROMPT),
        output=Constant(tokens=1),
        cost=Fitted(a0=0.0, a1=SERVICE_S / PROMPT),
        noise=0.0,
        scheduling=ReplicaCoreConfig(max_chunk=PROMPT, prefix_cache=False),
        slo=Slo(ttft_s=60.0, tpot_s=1.0),
        seed=7,
    )
    report = simulate(msgspec.structs.replace(scenario, router=NO_WIRE, heartbeat_s=0.5))
    wait_s = report.usual.ttft_s.mean - SERVICE_S
    assert wait_s == pytest.approx(load * SERVICE_S / (2.0 * (1.0 - load)), rel=0.06)
    assert report.utilisation == pytest.approx(load, rel=0.05)


def one(**wanted: object) -> Scenario:
    """One request alone."""
    settings = {"arrivals": Gamma(rate=1.0, cv=0.0), "num_requests": 1, "noise": 0.0, **wanted}
    return small(**settings)  # type: ignore[arg-type]


def test_one_stream_gets_a_token_each_step() -> None:
    """Step time is constant here (a0), so TPOT is exactly that."""
    report = simulate(
        one(mixed=1, prompt=Constant(tokens=100), output=Constant(tokens=50), cost=Fitted(a0=0.02, a1=1e-9))
    )
    assert report.usual.tpot_s.p50 == pytest.approx(0.02, rel=1e-3)
    assert report.itl_s.p99 == pytest.approx(0.02, rel=1e-3)
    assert report.usual.ttft_s.p50 == pytest.approx(0.02 + 2 * 0.0005, rel=1e-3)


@pytest.mark.parametrize(("link_gbyte_s", "num_layers"), [(10.0, 10), (0.05, 10), (0.5, 10), (0.1, 1)])
def test_a_hand_off_takes_what_the_two_stage_pipeline_says(link_gbyte_s: float, num_layers: int) -> None:
    """Exposed = x + (L - 1) * max(0, x - t) + latency, x = n*k/(L*b), t = T_p/L."""
    prompt, prefill_s, rate = 400, 0.4, link_gbyte_s * 1e9
    kv = KVShape(num_layers=num_layers, num_kv_heads=8, head_dim=128)
    scenario = one(
        prefill=1,
        decode=1,
        prompt=Constant(tokens=prompt),
        output=Constant(tokens=4),
        cost=Fitted(a0=0.0, a1=prefill_s / prompt),
        kv=kv,
        link_bytes_per_s=rate,
    )
    report = simulate(msgspec.structs.replace(scenario, latency_s=0.002, start_s=5.0))
    assert report.layouts == {"disaggregated": 1}
    num_bytes = prompt * kv.layout.bytes_per_token
    x, t = num_bytes / num_layers / rate, prefill_s / num_layers
    exposed_s = x + (num_layers - 1) * max(0.0, x - t) + 0.002
    assert report.exposed_s.p50 == pytest.approx(exposed_s, rel=0.01)
    assert report.handed_over == 1
    assert report.handoffs_failed == 0


def test_hand_offs_share_the_way_into_one_receiver() -> None:
    """Two senders at once: each transfer takes about twice as long as alone."""
    alone = one(prefill=1, decode=1, prompt=Constant(tokens=400), output=Constant(tokens=4), link_bytes_per_s=5e7)
    one_at_a_time = simulate(msgspec.structs.replace(alone, start_s=5.0)).exposed_s.p50
    both = small(
        prefill=2,
        decode=1,
        arrivals=Gamma(rate=1e6, cv=0.0),
        num_requests=2,
        noise=0.0,
        prompt=Constant(tokens=400),
        output=Constant(tokens=4),
        link_bytes_per_s=5e7,
    )
    report = simulate(msgspec.structs.replace(both, start_s=5.0))
    assert report.handed_over == 2
    assert report.exposed_s.p99 > 1.7 * one_at_a_time

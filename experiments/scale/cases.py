"""What is simulated: Llama-3-8B on A100-80GB cards, the Azure 2023 traces, one replica to ten thousand.

Step times are the formula of `scheduling.step_cost` with the coefficients that fit the roofline of that model and card
best: the same numbers can be given to Vidur as its tables, so that both simulators spend the same virtual time on a
step.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from simulator.cost import Fitted, believed_of
from simulator.lengths import LogNormal
from simulator.scenario import Scenario
from simulator.scenarios import deployed, small, under
from simulator.traces import Trace

MODEL, HARDWARE = "llama-3-8b", "a100-80"
CHUNK = 512
BATCH = 128
NUM_BLOCKS = 25_000
CONVERSATION, CODE = "azure_llm_2023_conv.csv", "azure_llm_2023_code.csv"
_RATE = {CONVERSATION: 3.3, CODE: 4.0}
"""Requests per second and replica: about two thirds of what a replica can do."""
_TRACE_RATE = {CONVERSATION: 5.53, CODE: 2.55}
"""Requests per second of the trace itself."""


def cost() -> Fitted:
    """Seconds."""
    fit = believed_of(deployed(MODEL, HARDWARE)["cost"])
    return Fitted(a0=fit.a0, a1=fit.a1, b0=fit.b0, b1=fit.b1, b2=fit.b2, b3=fit.b3)


def beside_vidur(traces: Path, replicas: int, num_requests: int) -> Scenario:
    """Sarathi-Serve with chunks of 512 tokens, the trace at its own rate for each replica, no spread of step times."""
    plain = small(mixed=replicas, cost=cost(), noise=0.0, num_blocks=NUM_BLOCKS, link_bytes_per_s=0.0)
    return _with_trace(under(plain, f"sarathi({CHUNK})"), traces / CONVERSATION, float(replicas), num_requests)


def many_requests(traces: Path, name: str, replicas: int, num_requests: int) -> Scenario:
    """A trace played again and again to a fleet under our own defaults."""
    plain = small(mixed=replicas, cost=cost(), num_blocks=NUM_BLOCKS, link_bytes_per_s=0.0)
    return _with_trace(plain, traces / name, replicas * _RATE[name] / _TRACE_RATE[name], num_requests)


def many_replicas(replicas: int, num_requests: int, heartbeat_s: float) -> Scenario:
    """Short answers to prompts of a chat, 4 requests a second for each replica."""
    scenario = small(
        mixed=replicas,
        cost=cost(),
        rate=4.0 * replicas,
        num_requests=num_requests,
        prompt=LogNormal(mean=1155.0, median=900.0, most=4096),
        output=LogNormal(mean=28.0, median=20.0, most=200),
        num_blocks=2048,
        link_bytes_per_s=0.0,
    )
    return msgspec.structs.replace(scenario, heartbeat_s=heartbeat_s)


def _with_trace(scenario: Scenario, path: Path, speed: float, num_requests: int) -> Scenario:
    if not path.is_file():
        raise ConfigError(f"there is no trace {path}", param="traces")
    workload = msgspec.structs.replace(
        scenario.workload, trace=Trace(path=str(path), speed=speed, repeat=True), num_requests=num_requests
    )
    scheduling = msgspec.structs.replace(scenario.scheduling, max_running=BATCH)
    return msgspec.structs.replace(scenario, workload=workload, scheduling=scheduling)

"""About what rate a fleet carries, in closed form: where a scan begins. Nothing is concluded from it.

A replica with `b` streams decodes in `d(b) = a0 + g*b` and spends `T_p` on each prompt. By Little's law, with the TPOT
target `S` used up, `r = (1 - a0/S) / (T_p + m*g)` requests per second; where memory or slots allow only `b` streams,
`r = b / (m*d(b) + b*T_p)`.
"""

from __future__ import annotations

from contracts.views import StepCost
from experiments.ecoserve.setups import Data, Setup
from scheduling.step_cost import predict_prefill_s
from simulator.cost import believed_of

MAX_RUNNING = 256
CHUNK = 2048


def carried(setup: Setup, data: Data | None = None) -> float:
    """Requests per second of the whole fleet; `data` with other targets than the set-up's."""
    made, load = setup.deployment, data or setup.load
    cost = believed_of(made.cost)
    return setup.replicas * min(_by_targets(cost, load), _by_memory(cost, load, made.num_blocks * made.block_size))


def stream_s(setup: Setup) -> float:
    """About how long a request stays at that rate, in seconds."""
    load = setup.load
    per_replica = carried(setup) / setup.replicas
    return min(load.output.mean * load.slo.tpot_s, MAX_RUNNING / per_replica)


def prefill_s(cost: StepCost, load: Data) -> float:
    """Of a prompt of mean length that shares its steps."""
    tokens = round(min(load.prompt.mean, load.prompt.most))
    alone_s = predict_prefill_s(cost, past=0, tokens=tokens, chunk=CHUNK)
    return alone_s - cost.a0 * (-(-tokens // CHUNK) - tokens / CHUNK)


def stream_cost_s(cost: StepCost, load: Data) -> float:
    """What one more stream adds to a decode step."""
    context = min(load.prompt.mean, load.prompt.most) + load.output.mean / 2
    return cost.a1 + cost.b3 + cost.b2 * context


def _by_targets(cost: StepCost, load: Data) -> float:
    work_s = prefill_s(cost, load) + load.output.mean * stream_cost_s(cost, load)
    return max(0.05, 1.0 - cost.a0 / load.slo.tpot_s) / work_s


def _by_memory(cost: StepCost, load: Data, kv_tokens: int) -> float:
    context = min(load.prompt.mean, load.prompt.most) + load.output.mean / 2
    streams = min(MAX_RUNNING, kv_tokens / context)
    step_s = cost.a0 + streams * stream_cost_s(cost, load)
    return streams / (load.output.mean * step_s + streams * prefill_s(cost, load))

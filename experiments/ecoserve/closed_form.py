"""Decode step time at the goodput point of n rolling replicas, simulated, beside the closed form `S_TPOT * (n-1)/n`.

With one replica in prefill at a time a cycle is n windows, of which a replica decodes n-1: a TPOT target S can be kept
while the decode step takes no more than S * (n-1)/n, however long the windows are (from EcoServe, OSDI'26, §3.3). The
workload is made so that the rate at which prefill takes all of one replica is the one at which the batch makes the
decode step that long; the scheduler is to get there, and no further.

    python -m experiments.ecoserve.closed_form [--rule min] [--replicas 2 4 8]
"""

from __future__ import annotations

import msgspec

from contracts.request import Slo
from experiments.load.command_line import end, parser_of
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from scheduling.policies import policy
from simulator.cost import Fitted
from simulator.lengths import Constant
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.scenarios import small

SLO = Slo(ttft_s=5.0, tpot_s=0.1)
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 100
PREFILL_S, STEP_FLOOR_S = 0.25, 0.03
RATES = (0.8, 0.9, 0.94, 0.98, 1.0, 1.02, 1.04, 1.08)
"""In multiples of one replica's prefill rate."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """At n replicas: the goodput in multiples of one replica's prefill rate, and the decode step there in seconds."""

    replicas: int
    goodput: float
    decode_step_s: float
    closed_form_s: float


def scenario(replicas: int, load: float, rule: str, duration_s: float) -> Scenario:
    """Equal requests at equal distances; `load` is the rate in multiples of one replica's prefill rate."""
    found = policy(rule)
    streams = OUTPUT_TOKENS * SLO.tpot_s / PREFILL_S / replicas  # on each replica, at load 1 and a TPOT on target
    per_token_s = (PREFILL_S - STEP_FLOOR_S) / PROMPT_TOKENS
    per_stream_s = (closed_form_s(replicas) - STEP_FLOOR_S) / streams
    base = ReplicaCoreConfig(max_running=256, max_chunk=PROMPT_TOKENS, prefix_cache=False)
    made = small(
        alternating=replicas,
        rate=load / PREFILL_S,
        cv=0.0,
        duration_s=duration_s,
        prompt=Constant(tokens=PROMPT_TOKENS),
        output=Constant(tokens=OUTPUT_TOKENS),
        cost=Fitted(a0=STEP_FLOOR_S, a1=per_token_s, b3=per_stream_s - per_token_s),
        noise=0.0,
        slo=SLO,
        scheduling=found.replica_config(base),
        cluster=found.cluster_config(ClusterCoreConfig(prefill_chunk=PROMPT_TOKENS)),
    )
    return msgspec.structs.replace(made, warmup_s=duration_s / 4)


def closed_form_s(replicas: int) -> float:
    """The longest decode step with which the TPOT target can be kept."""
    return SLO.tpot_s * (replicas - 1) / replicas


def find(replicas: int, rule: str = "min", duration_s: float = 120.0, share: float = 0.9) -> Found:
    """Scan the rates; attainment by EcoServe's clock (the switch wait belongs to TTFT), as in the paper.

    The decode step is the median gap between two tokens: gaps across a prefill window are longer, but few.
    """
    best = Found(replicas=replicas, goodput=0.0, decode_step_s=0.0, closed_form_s=closed_form_s(replicas))
    for load in RATES:
        report = simulate(scenario(replicas, load, rule, duration_s))
        if report.ecoserve.attained >= share:
            best = msgspec.structs.replace(best, goodput=load, decode_step_s=report.itl_s.p50)
    return best


def main() -> None:
    """Print one line for each fleet."""
    parser = parser_of("ecoserve.closed_form", __doc__)
    parser.add_argument("--rule", default="min", help="admission rule of alternating replicas (default %(default)s)")
    parser.add_argument(
        "--replicas", type=int, nargs="+", default=[2, 4, 8], metavar="N", help="of each fleet (default 2 4 8)"
    )
    parser.add_argument(
        "--duration", type=float, default=120.0, help="simulated seconds at each rate (default %(default)g)"
    )
    arguments = parser.parse_args()
    print("replicas  goodput (x one prefill)  decode step  S*(n-1)/n  ratio")
    for replicas in arguments.replicas:
        found = find(replicas, arguments.rule, arguments.duration)
        ratio = found.decode_step_s / found.closed_form_s
        print(
            f"{replicas:8d}  {found.goodput:23.2f}  {found.decode_step_s * 1e3:8.1f} ms  "
            f"{found.closed_form_s * 1e3:6.1f} ms  {ratio:5.2f}"
        )


if __name__ == "__main__":
    end("ecoserve.closed_form", main)

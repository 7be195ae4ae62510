"""A heavy key beside a light one in the simulator, with and without fair shares.

Two alternating replicas serve both; the heavy key asks for `--heavy`
times as much as the light one. Shown: attainment of the TTFT target per key, Jain's indices, the longest wait.

    python -m experiments.fairness [--heavy 1 4 10] [--seconds 120]
"""

from __future__ import annotations

import msgspec

from contracts.request import Slo
from experiments.load.command_line import end, parser_of
from scheduling.config import ClusterCoreConfig
from scheduling.fairness_config import FairnessConfig
from simulator.report import Report
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.scenarios import small
from simulator.workload import RequestClass

SLO = Slo(ttft_s=5.0, tpot_s=0.1)


def scenario(heavy: float, *, fair: bool, seconds: float, light_rate: float = 1.5, seed: int = 0) -> Scenario:
    """Two alternating replicas; the heavy key's rate is `heavy` times the light one's."""
    made = small(
        alternating=2,
        rate=light_rate * (1.0 + heavy),
        duration_s=seconds,
        seed=seed,
        slo=SLO,
        cluster=ClusterCoreConfig(fairness=FairnessConfig(enabled=fair)),
    )
    classes = (
        RequestClass(name="light", key="light", share=1.0, slo=SLO),
        RequestClass(name="heavy", key="heavy", share=heavy, slo=SLO),
    )
    return msgspec.structs.replace(made, workload=msgspec.structs.replace(made.workload, classes=classes))


def ttft_attained(report: Report, name: str) -> float:
    """Share of a class's requests whose first token was in time; refused ones count as missed."""
    return next(found.usual.ttft_attained for found in report.classes if found.name == name)


def main() -> None:
    """Print one line for each rate of the heavy key, without and with fair shares."""
    parser = parser_of("fairness", __doc__)
    parser.add_argument(
        "--heavy",
        type=float,
        nargs="+",
        default=[1.0, 4.0, 10.0],
        metavar="TIMES",
        help="rate of the heavy key in multiples of that of the light one (default 1 4 10)",
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="simulated, of arrivals (default %(default)g)")
    arguments = parser.parse_args()
    print("heavy  fair  TTFT light  TTFT heavy  jain tokens  jain attained  longest wait  finished  refused")
    for heavy in arguments.heavy:
        for fair in (False, True):
            report = simulate(scenario(heavy, fair=fair, seconds=arguments.seconds))
            print(
                f"{heavy:5.1f}  {'yes' if fair else 'no':>4}  {ttft_attained(report, 'light'):10.3f}  "
                f"{ttft_attained(report, 'heavy'):10.3f}  {report.jain_tokens:11.3f}  {report.jain_attained:13.3f}  "
                f"{report.longest_wait_s:10.1f} s  {report.finished:8d}  {sum(report.refused.values()):7d}"
            )


if __name__ == "__main__":
    end("fairness", main)

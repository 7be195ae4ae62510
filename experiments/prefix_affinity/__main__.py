"""Prints hit rate, TTFT and attainment of a trace's first requests with and without prefix affinity, by layout.

Example: `python -m experiments.prefix_affinity mooncake_conversation.jsonl --requests 400 --speed 1`. Step times are
those of CodeLlama2-34B on four L20 (`simulator.scenarios.L20_34B`), made `--faster` times as fast.
"""

from __future__ import annotations

import argparse

import msgspec

from contracts.phase import Role
from contracts.request import Slo
from experiments.load.command_line import count, end, parser_of, positive
from scheduling.config import ClusterCoreConfig
from simulator.cost import Fitted
from simulator.report import Report
from simulator.run import simulate
from simulator.scenario import Group, Scenario
from simulator.scenarios import KV_34B, L20_34B
from simulator.traces import Trace
from simulator.workload import RequestClass, Workload


def scenario(args: argparse.Namespace, role: Role, *, affinity: bool) -> Scenario:
    """The trace over `args.replicas` replicas of one role."""
    values = {name: value / args.faster for name, value in msgspec.structs.asdict(L20_34B).items()}
    group = Group(
        role=role,
        count=args.replicas,
        cost=Fitted(**values),
        kv=KV_34B,
        num_blocks=args.blocks,
        max_context=args.longest + 4096,
    )
    workload = Workload(
        trace=Trace(path=args.trace, speed=args.speed),
        num_requests=args.requests,
        max_prompt=args.longest,
        classes=(RequestClass(slo=Slo(ttft_s=args.ttft_s, tpot_s=args.tpot_s)),),
    )
    cluster = ClusterCoreConfig(prefix_affinity=affinity)
    return Scenario(fleet=(group,), workload=workload, cluster=cluster, duration_s=1e6, seed=1)


def row(role: Role, affinity: bool, report: Report) -> str:
    """One line of the table. Hits: cached prompt tokens among all prompt tokens of sequences that ran."""
    hit = sum(replica.prefix_hit_tokens for replica in report.replicas)
    computed = sum(replica.prompt_tokens for replica in report.replicas)
    share = hit / max(1, hit + computed)
    ttft = report.usual.ttft_s
    return (
        f"| {role} | {'yes' if affinity else 'no'} | {100 * share:.1f} % | {ttft.p50:.2f} | {ttft.p90:.2f} | "
        f"{ttft.p99:.2f} | {100 * report.usual.attained:.1f} % | {sum(report.refused.values())} |"
    )


def main() -> None:
    """See the module's text."""
    parser = parser_of("prefix_affinity", __doc__)
    parser.add_argument("trace", help="a file of the Mooncake traces (github.com/kvcache-ai/Mooncake)")
    parser.add_argument("--requests", type=count, default=400, metavar="N", help="its first ones (default %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="times its own rate (default %(default)g)")
    parser.add_argument("--replicas", type=count, default=4, metavar="N", help="of the fleet (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=40_000, help="of KV on each replica (default %(default)s)")
    parser.add_argument(
        "--longest", type=int, default=32_768, help="tokens that prompts are cut to (default %(default)s)"
    )
    parser.add_argument(
        "--faster", type=positive, default=10.0, help="times the steps of four L20 (default %(default)g)"
    )
    parser.add_argument("--ttft-s", type=float, default=4.0, help="target (default %(default)g)")
    parser.add_argument("--tpot-s", type=float, default=0.1, help="target (default %(default)g)")
    args = parser.parse_args()
    print("| role | affinity | cached | TTFT P50 s | P90 | P99 | attained | refused |")
    print("|---|---|---|---|---|---|---|---|")
    for role in (Role.MIXED, Role.ALTERNATING):
        for affinity in (False, True):
            print(row(role, affinity, simulate(scenario(args, role, affinity=affinity))), flush=True)


if __name__ == "__main__":
    end("prefix_affinity", main)

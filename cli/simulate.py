"""`phaseserve simulate`: the same cores on a virtual clock, one configuration, one report.

[scheduling] [cluster] [slo]   as for `phaseserve up`
[simulate]                     simulator.scenario.Scenario: duration_s, seed, latency_s, ...
[[simulate.fleet]]             role, count, num_blocks, link_bytes_per_s, cost = {kind = "fitted", a0 = 0.02, a1 = 3e-4}
                               or deployment = {model = "qwen2-72b", hardware = "l20", tp = 8}, or cost_file = "..."
[simulate.workload]            arrivals = {kind = "gamma", rate = 4.0}, prompt, output, trace = {path = "..."}, ...
[[simulate.changes]]           kind = "kill", at_s = 10.0, replica_id = "decode-1", ...

Without a file: a small fleet of CodeLlama2-34B on L20 cards (TP 4, measured rates, links of 10 Gbit/s), its replicas
by --alternating, --mixed, --prefill and --decode, or by --layout and --replicas. A minute of requests takes about a
second. Another model on other hardware, in another layout:

    phaseserve simulate --model qwen2-72b --hardware h100 --tp 4 --layout 1:3 --link-rate 25 --rate 6
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cli.asked import DATA, Asked, Parser, check_target, scenario_of
from cli.overlay import parse_assignment, read_toml
from cli.simulated_table import table_of
from cli.terms import ATTAINED, LATENCIES
from contracts.errors import ConfigError
from contracts.phase import Role
from simulator.drawing import draw_phases, missing, write_picture
from simulator.files import write_whole
from simulator.hardware import hardware_names
from simulator.layouts import WORDS, ratio_of
from simulator.models import model_names
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.timeline import Timeline

TIMELINE_S = 60.0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    terms = "\n".join((*LATENCIES, *ATTAINED))
    found = Parser(
        prog="phaseserve simulate",
        description=f"{__doc__}\n{terms}\n\nDefaults are those without a file: what it or --set says is kept.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings")
    found.add_argument("--set", action="append", default=[], metavar="K=V", help="one setting, e.g. simulate.seed=3")
    _add_fleet(found)
    _add_requests(found)
    found.add_argument("--json", metavar="FILE", help="write the whole report there (-: to standard output)")
    found.add_argument("--timeline", type=Path, metavar="FILE.png", help="draw the phase of each replica over time")
    found.add_argument("--timeline-from", type=float, default=0.0, metavar="S", help="where it begins (default 0 s)")
    found.add_argument("--timeline-for", type=float, default=TIMELINE_S, metavar="S",
                       help=f"how much of the run it shows (default {TIMELINE_S:g} s)")  # fmt: skip
    return found


def _add_fleet(found: argparse.ArgumentParser) -> None:
    """What serves."""
    for role in Role:
        usual = " (default 2 of them, if no other replica is named)" if role is Role.ALTERNATING else ""
        found.add_argument(
            f"--{role.value}", type=int, default=0, metavar="N", help=f"so many {role.value} replicas{usual}"
        )
    found.add_argument("--layout", help=f"instead of numbers by role: {WORDS}")
    found.add_argument("--replicas", type=int, metavar="N", help="how many a --layout has, a policy as --layout too"
                       " (default 2, of P:D the sum P+D)")  # fmt: skip
    found.add_argument("--policy", metavar="RULE", help="all replicas, counted by role, under an admission rule with"
                       " what belongs to it, e.g. ecoserve_paper; with --replicas name it as --layout")  # fmt: skip
    found.add_argument("--model", help=f"{', '.join(model_names())}, or a TOML file; wants --hardware")
    found.add_argument("--hardware", help=f"{', '.join(hardware_names())}, or a TOML file; wants --model")
    found.add_argument("--tp", type=int, metavar="N", help="devices that share each layer (default 1)")
    found.add_argument("--pp", type=int, metavar="N", help="pipeline stages (default 1)")
    found.add_argument("--cost-file", metavar="FILE",
                       help="what `phaseserve profile` measured, instead of --model and --hardware")  # fmt: skip
    found.add_argument("--link-rate", type=float, metavar="GBIT_S",
                       help="of each host, each way, Gbit/s (default 10)")  # fmt: skip


def _add_requests(found: argparse.ArgumentParser) -> None:
    """What is asked of it."""
    found.add_argument("--data", help=f"lengths of prompts and answers as in {', '.join(DATA)} (default sharegpt)")
    found.add_argument("--trace", metavar="FILE", help="Azure's CSV or Mooncake's JSON lines, instead of --data; --rate"
                       " scales its time (default: as recorded)")  # fmt: skip
    found.add_argument("--rate", type=float, metavar="R",
                       help="mean rate of arrivals, requests per second (default 4)")  # fmt: skip
    found.add_argument("--slo-ttft-s", type=float, metavar="S", help="TTFT target, seconds (default 5)")
    found.add_argument("--slo-tpot-s", type=float, metavar="S", help="TPOT target, seconds (default 0.1)")
    found.add_argument("--duration", type=float, metavar="S", help="seconds of arrivals (default 60)")
    found.add_argument("--seed", type=int, metavar="N", help="another seed, another run (default 0)")


def asked_of(arguments: argparse.Namespace) -> tuple[list[dict[str, object]], Asked]:
    """Layers of settings, and what was said by name."""
    layers = [read_toml(arguments.config)] if arguments.config else []
    layers += map(parse_assignment, arguments.set)
    same = ("layout", "policy", "model", "hardware", "tp", "pp", "cost_file", "data", "trace")
    asked = Asked(
        counts={role.value: getattr(arguments, role.value) for role in Role},
        replicas=_replicas(arguments, layers),
        link_gbit_s=arguments.link_rate,
        ttft_s=arguments.slo_ttft_s,
        tpot_s=arguments.slo_tpot_s,
        duration_s=arguments.duration,
        **{name: getattr(arguments, name) for name in (*same, "rate", "seed")},
    )
    return layers, asked


def _replicas(arguments: argparse.Namespace, layers: list[dict[str, Any]]) -> int | None:
    """As many as were said; P:D alone means P+D replicas where no file says how many there are."""
    said: int | None = arguments.replicas
    if said is not None or arguments.layout is None:
        return said
    simulated = [layer.get("simulate") for layer in layers]
    if any(isinstance(table, dict) and "fleet" in table for table in simulated):
        return None
    ratio = ratio_of(arguments.layout)
    return None if ratio is None else sum(ratio)


def run(words: list[str]) -> int:
    """Simulate, print the table, write report and picture. Raises `ConfigError` for what is wrong, before anything
    runs."""
    arguments = parser().parse_args(words)
    scenario = scenario_of(*asked_of(arguments))
    target = None if arguments.json in (None, "-") else Path(arguments.json)
    for option, path in (("--json", target), ("--timeline", arguments.timeline)):
        check_target(option, path)
    if target is not None and target == arguments.timeline:
        raise ConfigError(f"--json and --timeline both name {target}", param="--json")
    timeline = None
    if arguments.timeline is not None:
        reason = missing()
        if reason is not None:
            raise ConfigError(f"--timeline: {reason}", param="--timeline")
        timeline = Timeline(arguments.timeline_from, arguments.timeline_from + arguments.timeline_for)
    report = simulate(scenario, timeline)
    picture = None if timeline is None else draw_phases(timeline.spans(), title=_title(scenario), note=_note(timeline))
    if target is not None:
        write_whole(target, report.json() + b"\n", "--json")
    if picture is not None:
        write_picture(arguments.timeline, picture)
    as_json = arguments.json == "-"
    print(report.json().decode() if as_json else table_of(report, scenario, arguments.cost_file))
    return 0


def _title(scenario: Scenario) -> str:
    counts = ", ".join(f"{group.count} {group.role.value}" for group in scenario.fleet)
    return f"Phases of the replicas ({counts})"


def _note(timeline: Timeline) -> str:
    return "a replica had too many phases: its bar ends early" if timeline.cut else ""

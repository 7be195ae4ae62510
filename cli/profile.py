"""`phaseserve profile`: what a step of this engine costs here, as a file that `phaseserve simulate` reads.

Runs the real engine over a grid of steps: chunks of many sizes behind many pasts, decode rows of many counts and
contexts, both together. Fits the step-cost formula (scheduling/step_cost.py; `--kind fitted`) or a table over tokens
(`--kind table`) to the mean of each, and says how far it is off. With `--neighbours N` the same again while N more
engines compute beside it, as the replicas of one machine do. Settings as for `phaseserve up`. Takes a few minutes;
nothing else should run on the machine meanwhile: what disturbs it is in the file.

    phaseserve profile --quantization int8 --threads 1 --neighbours 1 --out cost.json
    phaseserve simulate --mixed 2 --cost-file cost.json --rate 1
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from cli.asked import Parser, check_target
from cli.profile_neighbours import NEIGHBOUR, Neighbours, be_neighbour
from cli.settings import Settings, add_arguments
from contracts.engine import Engine
from contracts.errors import ConfigError
from contracts.phase import Role
from replica.config import ReplicaConfig
from replica.load import load_engine
from replica.profiling import Profiler
from simulator.cost import Fitted, Table
from simulator.cost_file import KINDS, CostFile, Measured, encoded
from simulator.files import write_whole
from simulator.fitting import Samples, fit, residuals
from simulator.scenario import KVShape


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="phaseserve profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--engine", choices=("torch", "fake"), default="torch",
                        help="what computes: the model, or a stand-in that sleeps (default torch)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the cost file goes, JSON (default: none is"
                        " written)")  # fmt: skip
    parser.add_argument("--kind", choices=tuple(KINDS), default="fitted",
                        help="the step-cost formula, or a table over tokens (default fitted)")  # fmt: skip
    parser.add_argument("--neighbours", type=int, default=0, metavar="N",
                        help="more engines that compute beside it (default 0: none)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=6, metavar="N", help="steps measured of each point (default 6)")
    parser.add_argument("--decodes", type=int, default=16, metavar="N",
                        help="most decode rows of a step (default 16)")  # fmt: skip
    parser.add_argument(NEIGHBOUR, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def run(words: list[str]) -> int:
    """Measure, print, write. Raises `ConfigError` for what is wrong, before anything is measured."""
    arguments = parse(words)
    config = _config(arguments)
    os.environ["OMP_NUM_THREADS"] = str(config.engine.threads)
    if arguments.neighbour:
        be_neighbour(_profiler(config, arguments)[0])
        return 0
    with Neighbours(words, arguments.neighbours) as neighbours:
        profiler, engine = _profiler(config, arguments)
        neighbours.wait_ready()
        about = _about(config, engine, arguments)
        print(f"{about}\n{len(profiler.grid.points)} points, contexts of up to {profiler.grid.context} tokens")
        alone = _steps(profiler, arguments, "alone")
        crowded: Samples = ()
        if arguments.neighbours:
            neighbours.compute()
            crowded = _steps(profiler, arguments, f"beside {arguments.neighbours}")
        content = _content(engine, about, alone, crowded)
        profiler.close()
    chosen = content.refitted(arguments.kind)
    for kind in KINDS:
        _tell(content.refitted(kind), kind, arguments.kind)
    if arguments.out is not None:
        write_whole(arguments.out, encoded(chosen), "--out")
        print(f"written to {arguments.out}")
    return 0


def _config(arguments: argparse.Namespace) -> ReplicaConfig:
    for name, least in (("neighbours", 0), ("repeats", 1), ("decodes", 2)):
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} must be at least {least}", param=f"--{name}")
    check_target("--out", arguments.out)
    settings = Settings.from_arguments(arguments)
    cores = os.cpu_count() or 1
    threads = settings.table("engine").get("threads") or max(1, cores // (1 + arguments.neighbours))
    fixed = {"engine": {"threads": threads}, "kind": arguments.engine}
    return settings.replica(replica_id="profile", role=Role.MIXED, fixed=fixed)


def _profiler(config: ReplicaConfig, arguments: argparse.Namespace) -> tuple[Profiler, Engine]:
    engine = load_engine(config).engine
    return Profiler(engine, config.core, arguments.decodes), engine


def _steps(profiler: Profiler, arguments: argparse.Namespace, how: str) -> Samples:
    def done(number: int) -> None:
        print(f"\r{how}: round {number} of {arguments.repeats}", end="", file=sys.stderr, flush=True)

    samples = profiler.measure(arguments.repeats, done)
    print(file=sys.stderr)
    return samples


def _content(engine: Engine, about: str, alone: Samples, crowded: Samples) -> CostFile:
    """All that was measured, with the predictor's fit until another is chosen."""
    layout = engine.kv_layout
    beside = [durations for _, durations in crowded] or [()] * len(alone)
    cost = fit(alone)
    return CostFile(
        cost=cost,
        residuals=residuals(cost, alone),
        kv=KVShape(
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            dtype=layout.dtype,
        ),
        num_blocks=engine.num_blocks,
        max_context=engine.spec.max_context,
        about=about,
        measured=tuple(
            Measured(
                tokens=shape.tokens,
                past_chunk=shape.past_chunk,
                chunk_sq=shape.chunk_sq,
                decode_context=shape.decode_context,
                decodes=shape.decodes,
                past=shape.past,
                alone_s=tuple(durations),
                crowded_s=tuple(others),
            )
            for (shape, durations), others in zip(alone, beside, strict=True)
        ),
    )


def _tell(content: CostFile, kind: str, chosen: str) -> None:
    """How well a kind of model fits."""
    print(f"\n{kind}{' (chosen)' if kind == chosen else ''}")
    both = (("alone", content.cost, content.residuals), ("crowded", content.crowded, content.crowded_residuals))
    for how, model, off in both:
        if model is not None and off is not None:
            print(f"  {how}: {_words(model)}")
            print(
                f"  {how}: off by {off.mape:.1%} in the mean, {off.p95:.1%} at the 95th percentile of {off.points}"
                f" points; steps of one point spread by {off.noise:.1%}"
            )


def _words(model: Fitted | Table) -> str:
    if isinstance(model, Table):
        points = ", ".join(f"{tokens}: {1e3 * seconds:.1f}" for tokens, seconds in model.points)
        return f"ms by tokens {points}; {1e9 * model.context_s:.1f} ns a context token, {1e9 * model.pair_s:.2f} a pair"
    return (
        f"{1e3 * model.a0:.2f} ms + {1e3 * model.a1:.4f} ms a token + {1e3 * model.b3:.3f} ms a decode row +"
        f" {1e9 * model.b2:.1f} ns a context token + {1e9 * model.b0:.2f} ns a past x chunk + {1e9 * model.b1:.2f} ns"
        " a chunk squared"
    )


def _about(config: ReplicaConfig, engine: Engine, arguments: argparse.Namespace) -> str:
    numerics = engine.numerics.replace("none weights", "unquantized weights")  # replicas compare the name as it is
    today = datetime.now(UTC).date().isoformat()
    beside = f", {arguments.neighbours} engines beside it" if arguments.neighbours else ""
    return (
        f"{engine.spec.name} on {engine.device}, {numerics}, {config.engine.threads} threads{beside};"
        f" {arguments.repeats} steps a point, {today}"
    )

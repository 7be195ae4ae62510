"""Run every rule under every load, judge, and write RESULT.md and a picture.

    python -m experiments.slack_rules [--quick] [--seeds 2] [--workers 1]
    python -m experiments.slack_rules --stored [--version HASH]

Rows are kept: a run that was stopped goes on where it was. About 15 minutes on one core. With `--stored` nothing is
run: rows of the one version of the code that the store holds are shown, or of `--version`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from experiments.ecoserve.versions import chosen, commit_of, stored
from experiments.load.command_line import (
    add_out,
    add_seeds,
    add_store,
    add_stored,
    add_workers,
    check_stored,
    end,
    out_folder,
    parser_of,
)
from experiments.load.document import Document, command
from experiments.slack_rules import choice
from experiments.slack_rules.loads import LOADS, REPLICAS, VARIANTS, WHOLE, Load, cases
from experiments.slack_rules.picture import PICTURE, draw_rules
from experiments.slack_rules.reading import reading
from scheduling.config import ReplicaCoreConfig
from simulator.grid import Case, Row, Value, failed, run_grid
from simulator.grid.case import key_of
from simulator.report import Report

HERE = Path(__file__).parent
SETTINGS = ReplicaCoreConfig()
DEFAULT = SETTINGS.admission + ("" if SETTINGS.window_chunking else WHOLE)
TABLE = "Attained by rule and load"
DRAWN = "In one picture"
JUDGED = "Which rule is the default"
_PICTURED = (
    f"![share within both targets by rule and load]({PICTURE})",
    "",
    "The mean of both clocks, as the criterion below takes it; in bold the best, of those cut and of those whole.",
)


def main(words: Sequence[str] | None = None) -> int:
    """Print tables as they come."""
    parser = _parser()
    arguments = parser.parse_args(words)
    check_stored(parser, arguments)
    told = command("experiments.slack_rules", sys.argv[1:] if words is None else words)
    version = chosen(arguments.store, arguments.version) if arguments.stored else ""
    rows_of = f"{commit_of(version) or 'unknown'} (code {version})" if version else ""
    out = out_folder(parser, arguments, HERE)
    _run(arguments, Document(out / "RESULT.md", "Slack rules", told, rows_of), version)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("slack_rules", __doc__)
    parser.add_argument("--quick", action="store_true", help="two rules, one load, short runs: whether it works at all")
    add_stored(parser, "")
    add_seeds(parser, 2, "runs of each rule under each load")
    add_workers(parser)
    add_store(parser, "slack_rules")
    add_out(parser, HERE, "RESULT.md and the picture")
    return parser


def _run(arguments: argparse.Namespace, document: Document, version: str) -> None:
    """With a `version`, of stored rows: a rule that lacks some is told as not run.

    Raises `ConfigError` for a store that cannot be used.
    """
    variants, loads, shortened = (("min", "max"), LOADS[:1], 0.2) if arguments.quick else (VARIANTS, LOADS, 1.0)
    document.section("What was done", *_told(arguments.seeds))
    document.section(TABLE, *_head(loads))
    for variant in variants:
        document.plan(variant, f"`{variant}`")
    rows: dict[str, list[Row]] = {}
    for variant in variants:
        grid = [case for load in loads for case in cases(variant, load, arguments.seeds, shortened)]
        if version:
            found = _stored(grid, arguments.store, version)
            if len(found) < len(grid):
                continue
        else:
            found = run_grid(grid, arguments.store, workers=arguments.workers, progress=False, extra=overdraft)
        rows[variant] = [row for row in found if not row.error]
        document.section(TABLE, _line(variant, rows[variant], loads))
        for row in failed(found):
            document.section(TABLE, f"`{variant}` under {row['load']}: {row.error}")
        if draw_rules(rows, DEFAULT, document.beside(PICTURE)):
            document.replace(DRAWN, *_PICTURED)
        judged = choice.judge(rows, DEFAULT) if DEFAULT in rows else []
        document.replace(JUDGED, *_judged(judged))
        document.replace("What it says", *reading(rows, judged, DEFAULT))
        document.done(variant)


def _stored(grid: Sequence[Case], store: Path, version: str) -> list[Row]:
    """Those of the cases that the store has of that version."""
    kept = stored(store)
    keys = [key_of(case.scenario, overdraft, version) for case in grid]
    pairs = zip(keys, grid, strict=True)
    return [msgspec.structs.replace(kept[key], labels=case.labels) for key, case in pairs if key in kept]


def overdraft(report: Report) -> dict[str, Value]:
    """Seconds in which streams were held up beyond their slack, of all replicas."""
    return {"overdraft_s": sum(replica.overdraft_s for replica in report.replicas)}


def _told(seeds: int) -> list[str]:
    return [
        f"CodeLlama2-34B on {REPLICAS} alternating replicas of L20 (roofline, TP4, 3 % noise), Poisson arrivals, "
        f"{seeds} seeds, each load near the knee of `min` (rates chosen by trying that rule alone). A rule is cut at "
        "its allowance (in-window chunking), or `whole`: a prompt is begun only if there is slack for all of it.",
    ]


def _head(loads: Sequence[Load]) -> list[str]:
    names = " | ".join(f"{load.name}, {load.rate:g} req/s" for load in loads)
    return [
        "Percent within both targets by the usual clock / by EcoServe's. Overdraft: seconds in which streams were held "
        "up beyond their slack, in all runs.",
        "",
        f"| rule | {names} | longest gap P99 | overdraft |",
        "| --- | " + "---: | " * (len(loads) + 2),
    ]


def _line(variant: str, rows: Sequence[Row], loads: Sequence[Load]) -> str:
    cells = []
    for load in loads:
        own = [row for row in rows if row["load"] == load.name]
        cells.append(_both(own) if own else "-")
    gap_s = max((row.number("longest_gap_s.p99") for row in rows), default=0.0)
    beyond_s = sum(row.number("overdraft_s") for row in rows)
    return f"| `{variant}` | {' | '.join(cells)} | {gap_s:.2f} s | {beyond_s:.1f} s |"


def _both(rows: Sequence[Row]) -> str:
    usual = sum(row.number("usual.attained") for row in rows) / len(rows)
    ecoserve = sum(row.number("ecoserve.attained") for row in rows) / len(rows)
    return f"{100 * usual:.1f} / {100 * ecoserve:.1f}"


def _judged(judged: Sequence[choice.Judged]) -> list[str]:
    if not judged:
        return ["Not judged yet."]
    lines = [
        *(choice.__doc__ or "").split("\n\n", 1)[1].strip().splitlines(),
        "",
        "| rule | score | against the default | worst load |",
        "| --- | ---: | ---: | ---: |",
    ]
    for one in judged:
        against = f"{100 * one.difference:+.2f} ± {100 * one.error:.2f}"
        lines.append(f"| `{one.rule}` | {100 * one.score:.2f} | {against} | {100 * one.worst:+.2f} |")
    return [*lines, "", f"The default is `{DEFAULT}`; by the criterion it is to be `{choice.choose(judged, DEFAULT)}`."]


if __name__ == "__main__":
    end("slack_rules", main)

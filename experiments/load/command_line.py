"""What the command lines of experiments have in common: where results go, rows that are kept, processes, traces."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from simulator.exit_status import EXIT_REFUSED, exit_status

RESULTS = Path("results")
TRACES = Path("../shared/traces")
AZURE = "of the Azure LLM inference traces 2023 (github.com/Azure/AzurePublicDataset)"
MOONCAKE = "of the Mooncake traces (github.com/kvcache-ai/Mooncake)"


class Parser(argparse.ArgumentParser):
    """What is wrong on the command line is one line, and exit status 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(EXIT_REFUSED, f"{self.prog}: {message}\n")


def parser_of(name: str, text: str | None) -> argparse.ArgumentParser:
    """Of `python -m experiments.NAME`. `text` is the module's; its paragraphs are kept."""
    return Parser(
        prog=f"python -m experiments.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(word: str) -> int:
    """A whole number of at least 1. Raises `ArgumentTypeError`."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word:.40} is not a whole number of at least 1")
    return number


def positive(word: str) -> float:
    """A number above 0, and not endless. Raises `ArgumentTypeError`."""
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{word:.40} is not a number above 0")
    return number


def end(name: str, run: Callable[[], int | None]) -> NoReturn:
    """Be `python -m experiments.NAME`, and end with what `run` returns, as `simulator.exit_status` says."""
    sys.exit(exit_status(f"experiments.{name}", run))


def add_stored(parser: argparse.ArgumentParser, what: str) -> None:
    """`--stored` and `--version`, for `check_stored`."""
    parser.add_argument("--stored", action="store_true", help=f"show what the store holds, run nothing{what}")
    parser.add_argument("--version", default="", help="with --stored: of this version of the code, or this commit")


def check_stored(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with status 2 for a `--version` that nobody asked to see."""
    if options.version and not options.stored:
        parser.error("--version goes with --stored")


def add_out(parser: argparse.ArgumentParser, published: Path, what: str) -> None:
    """`--out`, for `out_folder`. `published` is the folder of the experiment, where its last results are kept."""
    name = published.name
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"where {what} go; made if it is not there (default experiments/{name}; with --quick "
        f"results/{name}-quick, so that what is published there stays)",
    )


def out_folder(parser: argparse.ArgumentParser, options: argparse.Namespace, published: Path) -> Path:
    """What `--out` says; without it the experiment's own folder, or after `--quick` another. Made if it is not there;
    where it cannot be the program ends with status 2."""
    quick = RESULTS / f"{published.name}-quick"
    folder: Path = options.out or (quick if options.quick else published)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {folder}: {error.strerror}")
    return folder


def add_store(parser: argparse.ArgumentParser, name: str) -> None:
    """`--store`, for rows that the next run need not make again."""
    parser.add_argument(
        "--store",
        type=Path,
        default=RESULTS / f"{name}.jsonl",
        metavar="FILE",
        help="rows of finished runs, by scenario and version of the code; a run that was stopped goes on from it "
        "(default %(default)s)",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """`--workers`."""
    parser.add_argument(
        "--workers", type=count, default=1, metavar="N", help="processes at a time (default %(default)s)"
    )


def add_seeds(parser: argparse.ArgumentParser, default: int, of: str) -> None:
    """`--seeds`; `of` says whose."""
    parser.add_argument("--seeds", type=count, default=default, metavar="N", help=f"{of} (default %(default)s)")


def add_traces(parser: argparse.ArgumentParser, azure: Sequence[str], mooncake: Sequence[str] = ()) -> None:
    """`--traces`, the folder of these files."""
    parts = [f"{' and '.join(files)} {source}" for files, source in ((azure, AZURE), (mooncake, MOONCAKE)) if files]
    parser.add_argument(
        "--traces",
        type=Path,
        default=TRACES,
        metavar="FOLDER",
        help=f"folder of {', '.join(parts)}; not part of this repository (default %(default)s)",
    )


def check_traces(parser: argparse.ArgumentParser, folder: Path, files: Sequence[str]) -> None:
    """Where one of them is not in the folder the program ends with status 2, before anything is written."""
    for file in files:
        if not (folder / file).is_file():
            parser.error(f"argument --traces: there is no {folder / file}")

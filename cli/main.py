"""The `phaseserve` command: one word says what to do, its own module does it (and imports only what it needs)."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import partial
from importlib.metadata import version

from simulator.exit_status import EXIT_REFUSED, exit_status

COMMANDS = {
    "up": "router and replicas on this machine, one process each",
    "router": "the front door alone, for replicas that run elsewhere",
    "replica": "one replica alone",
    "chat": "ask a running server one question",
    "fleet": "the replicas of a running server; give one another role, or drain it",
    "doctor": "what is installed, does the model load, does a request work, at what speed",
    "schema": "the JSON schema of the settings file, for an editor or a chart",
    "profile": "what a step of the engine costs here, as a file for `simulate`",
    "simulate": "the same cores on a virtual clock: one configuration, one report",
    "sweep": "the simulator over a grid, on all cores; with --live: links of this machine, measured",
}


def usage() -> str:
    """What `phaseserve --help` prints."""
    rows = "\n".join(f"  phaseserve {name:8s} {what}" for name, what in COMMANDS.items())
    return f"PhaseServe {version('phaseserve')}\n\n{rows}\n\n`phaseserve COMMAND --help` tells more.\n"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 2 for settings or a model that were refused, 1 for what failed later."""
    words = sys.argv[1:] if argv is None else argv
    program = f"phaseserve {words[0]}" if words and words[0] in COMMANDS else "phaseserve"
    return exit_status(program, partial(_run, words))


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0 if words else EXIT_REFUSED
    if words[0] in ("-V", "--version"):
        print(version("phaseserve"))
        return 0
    if words[0] not in COMMANDS:
        print(f"phaseserve: unknown command {words[0]!r}\n\n{usage()}", end="", file=sys.stderr)
        return EXIT_REFUSED
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    command = importlib.import_module(f"cli.{words[0]}")
    code: int = command.run(words[1:])
    return code

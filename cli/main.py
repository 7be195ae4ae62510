"""The `phaseserve` command: one word says what to do, its own module does it (and imports only what it needs)."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from importlib.metadata import version

from contracts.errors import ConfigError, ModelError, PhaseServeError

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
EXIT_FAILED, EXIT_REFUSED = 1, 2


def usage() -> str:
    """What `phaseserve --help` prints."""
    rows = "\n".join(f"  phaseserve {name:8s} {what}" for name, what in COMMANDS.items())
    return f"PhaseServe {version('phaseserve')}\n\n{rows}\n\n`phaseserve COMMAND --help` tells more.\n"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 2 for settings or a model that were refused, 1 for what failed later."""
    words = sys.argv[1:] if argv is None else argv
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
    try:
        code: int = command.run(words[1:])
        sys.stdout.flush()
    except BrokenPipeError as error:
        print(f"phaseserve {words[0]}: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be printed has no reader
        return EXIT_FAILED
    except (ConfigError, ModelError) as error:
        print(f"phaseserve {words[0]}: {error.message}", file=sys.stderr)
        return EXIT_REFUSED
    except PhaseServeError as error:
        print(f"phaseserve {words[0]}: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    return code

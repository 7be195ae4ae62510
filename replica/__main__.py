"""`python -m replica CONFIG`: one replica. CONFIG is JSON text, or a .json or .toml file (`replica.config`)."""

from __future__ import annotations

import sys

from contracts.errors import ConfigError
from replica.config import read_config
from replica.process import EXIT_REFUSED, run_replica


def main(words: list[str]) -> int:
    """The exit code."""
    if len(words) != 1:
        print("usage: python -m replica CONFIG (JSON text, or a .json or .toml file)", file=sys.stderr)
        return EXIT_REFUSED
    try:
        config = read_config(words[0])
    except ConfigError as error:
        print(f"replica: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return run_replica(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

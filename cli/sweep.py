"""`phaseserve sweep --live`: where handing KV over pays on this machine, measured over links of many rates.

The program is `experiments.bandwidth_sweep`, a sibling of this room: it is run, not imported.
"""

from __future__ import annotations

import os
import sys

from cli.supervisor import module_command
from contracts.errors import ConfigError

PROGRAM = "experiments.bandwidth_sweep"
LIVE = "--live"


def run(words: list[str]) -> int:
    """Become the sweep. Raises `ConfigError` without `--live`: the sweep takes minutes and makes network namespaces."""
    if LIVE not in words and not {"-h", "--help"} & set(words):
        raise ConfigError(
            f"say {LIVE}: real processes in network namespaces on this machine, for some minutes"
            f" (`phaseserve sweep {LIVE} --help` tells more)",
            param=LIVE,
        )
    argv = module_command(PROGRAM, *(word for word in words if word != LIVE))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)

"""`phaseserve replica`: one replica, in this process: it becomes `python -m replica`.

A replica that hands KV over finds the fleet's secret in the environment (PHASESERVE_FLEET_SECRET) or in the file.
"""

from __future__ import annotations

import argparse
import os
import sys

from cli.settings import Settings, add_arguments
from cli.supervisor import module_command
from contracts.phase import Role
from replica.config import without_secret


def run(words: list[str]) -> int:
    """Build the config, then become the replica."""
    parser = argparse.ArgumentParser(prog="phaseserve replica", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--role", required=True, choices=[role.value for role in Role])
    parser.add_argument("--id", default="", help="name in logs and metrics (default: role and process id)")
    parser.add_argument("--host", help="address the router connects to (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="control port (default: any free one, said in the log)")
    parser.add_argument("--health-port", type=int, help="answer probes over HTTP there (default: nowhere; 0: any)")
    parser.add_argument("--engine", choices=("torch", "fake"), help="fake: deterministic tokens, for tests")
    arguments = parser.parse_args(words)
    fixed = {
        "host": arguments.host,
        "port": arguments.port,
        "health_port": arguments.health_port,
        "kind": arguments.engine,
    }
    config = Settings.from_arguments(arguments).replica(
        replica_id=arguments.id or f"{arguments.role}-{os.getpid()}",
        role=Role(arguments.role),
        fixed={name: value for name, value in fixed.items() if value is not None},
    )
    sys.stdout.flush()
    text, secret = without_secret(config)
    os.execve(sys.executable, module_command("replica", text), {**os.environ, **secret})

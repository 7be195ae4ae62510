"""`phaseserve router`: the front door alone."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from cli.discovery import discovery_of
from cli.parent_watch import end_with_parent
from cli.settings import Settings, add_arguments
from router.config import DiscoveryKind
from router.server import run_router


def run(words: list[str]) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="phaseserve router", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--replica", action="append", metavar="tcp://HOST:PORT", help="one for each replica")
    parser.add_argument("--discovery", choices=get_args(DiscoveryKind), help="how replicas are found (default static)")
    parser.add_argument("--replicas-file", metavar="FILE", help="endpoints, one a line; watched (--discovery file)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000)")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.parent_pid:
        end_with_parent(arguments.parent_pid)
    fixed: dict[str, Any] = {
        "host": arguments.host,
        "port": arguments.port,
        "replicas": arguments.replica,
        "discovery": arguments.discovery,
        "replicas_file": arguments.replicas_file,
    }
    settings = Settings.from_arguments(arguments)
    config = settings.router(fixed={k: v for k, v in fixed.items() if v is not None})
    return run_router(config, discovery_of(config, settings))

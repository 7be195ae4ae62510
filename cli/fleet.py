"""`phaseserve fleet`: the replicas of a running server; another role for one of them, or its leave.

A server that has an admin token wants it: PHASESERVE_ADMIN_TOKEN in the environment. The exit code is 2 for a wish that
the server refused, 1 for one that it could not be told of or that did not come true in time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from cli.http_client import ServerError, get_json, post_json
from contracts.phase import Role
from router.config import ADMIN_TOKEN_VARIABLE

EXIT_FAILED, EXIT_REFUSED = 1, 2
ANSWER_S = 10.0
POLL_S = 0.05
REASONS = 5
REFUSALS = frozenset({400, 403, 404, 409})
COLUMNS = ("replica", "role", "phase", "running", "waiting", "backlog", "guarded", "macro instance", "state")


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="phaseserve fleet", description=__doc__)
    parser.set_defaults(act=None)
    _add_url(parser, "http://127.0.0.1:8000")
    acts = parser.add_subparsers(title="acts (none: show the replicas)", metavar="ACT")
    role = acts.add_parser("set-role", help="give a replica another role, at once; its running streams are protected")
    role.add_argument("replica")
    role.add_argument("role", choices=[role.value for role in Role])
    role.add_argument(
        "--pin", action=argparse.BooleanOptionalAction, default=True, help="the planner leaves it alone (default)"
    )
    role.add_argument("--wait", type=float, default=10.0, metavar="SECONDS", help="until it has the role (default 10)")
    role.set_defaults(act="role")
    drain = acts.add_parser("drain", help="let a replica finish what it has, and leave")
    drain.add_argument("replica")
    drain.set_defaults(act="drain")
    for act in (role, drain):
        _add_url(act, argparse.SUPPRESS)
    return parser.parse_args(words)


def _add_url(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--url", default=default, help="of the server (default http://127.0.0.1:8000)")


def table(fleet: dict[str, Any]) -> str:
    """The answer of `GET /fleet` as aligned text. Raises `KeyError` for another server's answer."""
    rows: list[Sequence[str]] = [COLUMNS]
    rows += [_row(replica) for replica in fleet["replicas"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += _planned(fleet["planner"])
    lines += [f"not joined: {missing['endpoint']} ({missing['why_not']})" for missing in fleet["not_joined"]]
    return "\n".join(lines)


def _planned(planner: dict[str, Any]) -> list[str]:
    """What the planner found, if it is on."""
    if not planner["enabled"]:
        return []
    if planner["demand_per_s"] is None:
        return ["planner: on, nothing was asked for lately"]
    found = f"planner: {planner['demand_per_s']:.2f} requests/s"
    if planner["carries_per_s"] is not None:
        found += f" of {planner['carries_per_s']:.2f} that these roles carry"
    return [found + (f", moving towards {planner['goal']}" if planner["goal"] else "")]


def reasons(decisions: list[dict[str, Any]]) -> str:
    """The last decisions about the fleet, oldest first, as lines."""
    return "\n".join(f"{decision['kind']}: {decision['reason']}" for decision in reversed(decisions))


def _row(replica: dict[str, Any]) -> Sequence[str]:
    role = replica["role"]
    if replica["wanted_role"] != role:
        role += f" -> {replica['wanted_role']}"
    return (
        replica["replica_id"],
        role + (" (pinned)" if replica["pinned"] else ""),
        replica["phase"],
        str(replica["running"]),
        str(replica["waiting"]),
        f"{replica['backlog_s']:.2f} s",
        str(replica["guarded"]),
        replica["macro_instance"] or "-",
        replica["closed"] or "open",
    )


def set_role(url: str, replica_id: str, role: str, *, pinned: bool, wait_s: float) -> str:
    """Give a replica a role and wait until it has it; one sentence. Raises `ServerError`."""
    entry = _post(url, replica_id, "role", {"role": role, "pinned": pinned})
    before, deadline = entry["role"], time.monotonic() + wait_s
    while entry["role"] != role and time.monotonic() < deadline:
        time.sleep(POLL_S)
        entry = _entry(url, replica_id)
    if entry["role"] != role and wait_s > 0.0:
        raise ServerError(f"{replica_id} is still {entry['role']} after {wait_s:g} s; `phaseserve fleet` shows it")
    stays = "pinned" if entry["pinned"] else "the planner may change it"
    if entry["role"] != role:
        return f"{replica_id} will be {role} instead of {before} ({stays})"
    streams = f", {entry['guarded']} streams of before go on undisturbed" if entry["guarded"] else ""
    return f"{replica_id} is {role} ({stays}){streams}"


def drain(url: str, replica_id: str) -> str:
    """Ask a replica to leave; one sentence. Raises `ServerError`."""
    entry = _post(url, replica_id, "drain", {})
    return f"{replica_id} leaves once {entry['running']} running and {entry['waiting']} waiting sequences have ended"


def _post(url: str, replica_id: str, act: str, body: dict[str, Any]) -> dict[str, Any]:
    path = f"/fleet/replicas/{quote(replica_id, safe='')}/{act}"
    token = os.environ.get(ADMIN_TOKEN_VARIABLE, "")
    entry: dict[str, Any] = post_json(url, path, body, timeout_s=ANSWER_S, token=token)
    return entry


def _entry(url: str, replica_id: str) -> dict[str, Any]:
    for replica in get_json(url, "/fleet", timeout_s=ANSWER_S)["replicas"]:
        if replica["replica_id"] == replica_id:
            found: dict[str, Any] = replica
            return found
    raise ServerError(f"{replica_id} has left the fleet")


def run(words: list[str]) -> int:
    """Show the fleet, or change it."""
    arguments = parse(words)
    url = arguments.url.rstrip("/")
    try:
        if arguments.act == "role":
            wait_s = max(0.0, arguments.wait)
            print(set_role(url, arguments.replica, arguments.role, pinned=arguments.pin, wait_s=wait_s))
        elif arguments.act == "drain":
            print(drain(url, arguments.replica))
        else:
            print(table(get_json(url, "/fleet", timeout_s=ANSWER_S)))
            last = get_json(url, f"/fleet/decisions?limit={REASONS}", timeout_s=ANSWER_S)["decisions"]
            if last:
                print(f"\nlast decisions:\n{reasons(last)}")
    except ServerError as error:
        print(f"phaseserve fleet: {error}", file=sys.stderr)
        return EXIT_REFUSED if error.status in REFUSALS else EXIT_FAILED
    except (KeyError, TypeError) as error:
        print(f"phaseserve fleet: {url} is not a PhaseServe router (its answer lacks {error})", file=sys.stderr)
        return EXIT_FAILED
    return 0

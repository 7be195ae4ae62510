"""A deployment whose replicas live on different hosts: `python -m replica` in its namespace, the router in ours.

The same processes, settings and wire messages as on real machines; what a replica says is kept in `log`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from contracts.phase import Role
from experiments.network.lan import Host, Lan
from replica.config import SECRET_VARIABLE

READY_S = 180.0
READY_MARK = "PHASESERVE_READY "
STOP_S = 45.0


class FleetError(Exception):
    """A process of the deployment did not become ready, or ended; the message ends with its last lines."""


@dataclass(slots=True)
class Member:
    """One process: a replica or the router. `port` is where it listens, of a replica once it is ready."""

    name: str
    process: subprocess.Popen[str]
    port: int
    log: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    reader: threading.Thread | None = None

    def copy_log(self) -> None:
        """Read what it says until it ends (on a thread of its own)."""
        assert self.process.stdout is not None
        with self.process.stdout as said:
            for line in said:
                self.log.append(line.rstrip())
                if line.startswith(READY_MARK):
                    self.port = int(line.rsplit(":", 1)[1])
                    self.ready.set()
        self.ready.set()


class LanFleet:
    """Replicas by host, a router in front. `settings` are the tables of every replica's configuration.

    `own` holds tables of single replicas, by name; they win, from the next start on. `router_settings` are `--set`
    assignments of the router. Use as a context manager; raises `FleetError`.
    """

    def __init__(
        self,
        lan: Lan | None,
        roles: Mapping[str, Role],
        *,
        model: str = "smollm2-135m",
        settings: Mapping[str, Any] | None = None,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        router_settings: Sequence[str] = (),
    ) -> None:
        self._lan = lan
        self._roles = dict(roles)
        self._model = model
        self._settings = dict(settings or {})
        self._router_settings = list(router_settings)
        self.own: dict[str, Mapping[str, Any]] = dict(own or {})
        self.secret = secrets.token_hex(16)
        self.members: dict[str, Member] = {}
        self.address = "127.0.0.1" if lan is None else lan.address
        self.url = ""

    def __enter__(self) -> LanFleet:
        try:
            for name in self._roles:
                self.start_replica(name)
            for name in self._roles:
                self.wait_ready(name)
            self.start_router()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start_replica(self, name: str) -> None:
        """Start (or start again, on the same port) the replica of a host. Does not wait for it."""
        host = None if self._lan is None else self._lan.hosts[name]
        earlier = self.members.get(name)
        port = 0 if earlier is None else earlier.port  # a free port found here may be taken before it listens
        address = "127.0.0.1" if host is None else host.address
        config = _merged(
            {"engine": {"model": self._model}, "transfer": {"host": address}},
            self._settings,
            self.own.get(name, {}),
            {"replica_id": name, "role": self._roles[name].value, "host": address, "port": port},
            {"parent_pid": os.getpid()},
        )
        self.members[name] = self._spawn(name, [sys.executable, "-P", "-m", "replica", json.dumps(config)], host, port)

    def wait_ready(self, name: str) -> None:
        """Until a started replica says so."""
        member = self.members[name]
        if not member.ready.wait(READY_S) or not any(line.startswith(READY_MARK) for line in member.log):
            raise FleetError(f"{name} is not ready:\n" + "\n".join(member.log[-12:]))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to one member."""
        self.members[name].process.send_signal(number)

    def close(self) -> None:
        """End everything, the router first; kills what does not end in time. Idempotent."""
        for names in (["router"], [name for name in self.members if name != "router"]):
            living = [self.members[name] for name in names if name in self.members]
            for member in living:
                with contextlib.suppress(ProcessLookupError):
                    member.process.send_signal(signal.SIGCONT)
                    member.process.send_signal(signal.SIGTERM)
            for member in living:
                try:
                    member.process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    member.process.kill()
                    member.process.wait()
                if member.reader is not None:
                    member.reader.join(STOP_S)

    def get(self, path: str) -> Any:
        """JSON of one of the router's own pages."""
        return httpx.get(f"{self.url}{path}", timeout=10).json()

    def start_router(self) -> None:
        """Start the router (or start it again, on the same port) and wait until it is ready."""
        earlier = self.members.get("router")
        port = _free_port() if earlier is None else earlier.port
        self.url = f"http://127.0.0.1:{port}"
        words = ["router", "--model", self._model, "--host", "127.0.0.1", "--port", str(port)]
        words += ["--parent-pid", str(os.getpid())]
        for name in self._roles:
            host = "127.0.0.1" if self._lan is None else self._lan.hosts[name].address
            words += ["--replica", f"tcp://{host}:{self.members[name].port}"]
        for assignment in self._router_settings:
            words += ["--set", assignment]
        router = self._spawn("router", [sys.executable, "-P", "-m", "cli", *words], None, port)
        self.members["router"] = router
        deadline = time.monotonic() + READY_S
        while True:
            if router.process.poll() is not None or time.monotonic() > deadline:
                raise FleetError("the router is not ready:\n" + "\n".join(router.log[-12:]))
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200:
                    return
            time.sleep(0.1)

    def _spawn(self, name: str, argv: list[str], host: Host | None, port: int) -> Member:
        environment = {**os.environ, SECRET_VARIABLE: self.secret, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            argv if host is None else host.command(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        member = Member(name, process, port)
        member.reader = threading.Thread(target=member.copy_log, name=f"log of {name}", daemon=True)
        member.reader.start()
        return member


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; tables are merged one level deep."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            known = result.get(key)
            result[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return result

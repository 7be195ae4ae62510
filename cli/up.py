"""`phaseserve up`: router and replicas on this machine, one process each, one log, one Ctrl-C.

A replica that dies is started again on its port (a few times; then everything stops). The model is judged here, before
any process starts, so that a bad one is refused before any port opens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from typing import Any

from cli.chat import ask
from cli.front import front_url, require_free
from cli.http_client import ServerError, get_json
from cli.settings import Settings, add_arguments
from cli.supervisor import Child, ChildFailedError, Supervisor, module_command, own_command
from contracts.errors import ConfigError
from contracts.phase import Role
from engine.checkpoint.resolve import resolve_model
from replica.config import without_secret

READY_S = 600.0
ROUTER_READY_S = 60.0
MAX_RESTARTS = 3
RESTART_WINDOW_S = 60.0
GRACE_S = 35.0
AUTO_ROLES = "cluster.planner.enabled=true"


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="phaseserve up", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--alternating", type=int, default=0, metavar="N", help="replicas with long prefill phases")
    parser.add_argument("--mixed", type=int, default=0, metavar="N", help="replicas that mix chunks into decode steps")
    parser.add_argument("--prefill", type=int, default=0, metavar="N", help="replicas that prefill and give KV away")
    parser.add_argument("--decode", type=int, default=0, metavar="N", help="replicas that take KV in and decode")
    parser.add_argument(
        "--auto-roles",
        action="store_true",
        help="give replicas other roles as workload and links ask for (needs two replicas or more)",
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 8000)")
    parser.add_argument("--engine", choices=("torch", "fake"), help="fake: deterministic tokens, for tests")
    parser.add_argument("--ask", metavar="QUESTION", help="ask this once everything is ready, and stay up")
    return parser.parse_args(words)


def roles(arguments: argparse.Namespace) -> dict[str, Role]:
    """Replica names and their roles. Raises `ConfigError` when there is none."""
    order = (Role.ALTERNATING, Role.MIXED, Role.PREFILL, Role.DECODE)
    counts = {role: getattr(arguments, role.value) for role in order}
    if min(counts.values()) < 0 or not sum(counts.values()):
        words = "say how many replicas: --alternating N, --mixed N, or --prefill N with --decode M"
        raise ConfigError(words, param="--alternating")
    if bool(counts[Role.PREFILL]) != bool(counts[Role.DECODE]):
        raise ConfigError("--prefill and --decode belong together: one gives its KV to the other", param="--prefill")
    named = [role for role, count in counts.items() for _ in range(count)]
    if arguments.auto_roles and len(named) < 2:
        raise ConfigError("--auto-roles needs two replicas or more", param="--auto-roles")
    return {f"r{index}": role for index, role in enumerate(named)}


def fleet_defaults(table: dict[str, Any]) -> dict[str, str]:
    """What a fleet on one machine needs of [transfer] that nobody has set: a secret of its own, and no port that others
    can reach."""
    values = {}
    if not table.get("secret"):
        values["secret"] = secrets.token_urlsafe(32)
    if not any(table.get(name) for name in ("host", "device")) and table.get("require") != "rdma":
        values["host"] = "127.0.0.1"
    return values


class Deployment:
    """The processes of one `up`."""

    def __init__(self, settings: Settings, named: dict[str, Role], arguments: argparse.Namespace) -> None:
        self._settings = settings
        self._roles = named
        self._arguments = arguments
        self._supervisor = Supervisor()
        self._endpoints: dict[str, str] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._drained: set[str] = set()
        self._fleet = fleet_defaults(settings.table("transfer"))
        fixed = {name: getattr(arguments, name) for name in ("host", "port") if getattr(arguments, name) is not None}
        self._front = settings.router(fixed={**fixed, "replicas": ["tcp://127.0.0.1:1"]})
        require_free(self._front.host, self._front.port)
        self.url = front_url(self._front.host, self._front.port)

    async def run(self, stop: asyncio.Event) -> int:
        """Start, serve until `stop` or a failure that restarts do not mend, end everything. The exit code."""
        stopping = asyncio.create_task(stop.wait())
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                return 0
            serving.result()
            return 1
        except ChildFailedError as error:
            print(f"phaseserve up: {error}", file=sys.stderr)
            return 1
        finally:
            ours = (stopping, serving, *self._watches)
            for task in ours:
                task.cancel()
            await asyncio.gather(*ours, return_exceptions=True)
            await self._supervisor.stop(["router"], GRACE_S)
            await self._supervisor.stop(list(self._roles), GRACE_S)

    def kill(self) -> None:
        """The second Ctrl-C."""
        self._supervisor.kill_all()

    async def _serve(self) -> None:
        started = [await self._start_replica(name) for name in self._roles]
        for child in started:
            self._endpoints[child.name] = await self._supervisor.wait_ready(child, READY_S)
        require_free(self._front.host, self._front.port)  # else somebody else's answer would be taken for our router's
        router = await self._start_router()
        # A replica may die before the front is ready, and the front waits for it: mending must not wait for the front.
        together = {asyncio.create_task(self._keep_running()), asyncio.create_task(self._announce(router))}
        self._watches |= together
        done, _ = await asyncio.wait(together, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _keep_running(self) -> None:
        while True:
            await self._mend(await self._supervisor.wait_any_end())

    async def _announce(self, router: Child) -> None:
        await self._wait_front(router)
        print(f"PhaseServe is ready on {self.url} ({', '.join(f'{n}: {r}' for n, r in self._roles.items())})")
        print(f"Try: phaseserve chat --url {self.url} 'Hello!'   Stop: Ctrl-C", flush=True)
        if self._arguments.ask:
            await asyncio.to_thread(self._ask, self._arguments.ask)

    async def _start_replica(self, name: str, port: int = 0) -> Child:
        threads = self._settings.table("engine").get("threads") or max(1, (os.cpu_count() or 1) // len(self._roles))
        fixed: dict[str, Any] = {"port": port, "engine": {"threads": threads}, "parent_pid": os.getpid()}
        fixed["transfer"] = self._fleet  # a secret of the environment wins over it
        if len(self._roles) > 1:
            fixed["roles_may_change"] = self._settings.table("replica").get("roles_may_change", True)
        if self._arguments.engine:
            fixed["kind"] = self._arguments.engine
        config = self._settings.replica(replica_id=name, role=self._roles[name], fixed=fixed)
        text, secret = without_secret(config)
        argv = module_command("replica", text)
        return await self._supervisor.start(name, argv, env={"OMP_NUM_THREADS": str(threads), **secret})

    async def _start_router(self) -> Child:
        words = ["router", "--parent-pid", str(os.getpid()), "--host", self._front.host]
        words += ["--port", str(self._front.port), "--model", self._settings.model]
        for endpoint in self._endpoints.values():
            words += ["--replica", endpoint]
        if self._arguments.config:
            words += ["--config", str(self._arguments.config)]
        for assignment in self._arguments.set:
            words += ["--set", assignment]
        if self._arguments.auto_roles:
            words += ["--set", AUTO_ROLES]
        return await self._supervisor.start("router", own_command(*words))

    async def _wait_front(self, router: Child) -> None:
        deadline = time.monotonic() + ROUTER_READY_S
        last = "no answer"
        while time.monotonic() < deadline:
            if router.process.returncode is not None:
                raise ChildFailedError(f"the router ended with code {router.process.returncode}")
            try:
                await asyncio.to_thread(get_json, self.url, "/health/ready")
            except ServerError as error:
                last = str(error)
                await asyncio.sleep(0.1)
            else:
                return
        raise ChildFailedError(f"the router was not ready after {ROUTER_READY_S:.0f} s: {last}")

    def _ask(self, question: str) -> None:
        print(f"\n> {question}", flush=True)
        try:
            ask(self.url, question, max_tokens=128, temperature=0.0, timeout_s=120)
        except ServerError as error:
            print(f"phaseserve up: the question failed: {error}", file=sys.stderr, flush=True)

    async def _mend(self, child: Child) -> None:
        """Start an ended replica again on its port, where the router finds it; does not wait until it is ready, so that
        an end before that is one more end. Raises `ChildFailedError` for the router, or too many ends.

        One that was drained ended because it was told to: it stays away, unless it was the last one."""
        now = time.monotonic()
        code = child.process.returncode
        if code == 0 and child.name in self._roles:
            self._drained.add(child.name)
            self._supervisor.forget(child)
            if len(self._drained) == len(self._roles):
                raise ChildFailedError("every replica was drained")
            print(f"phaseserve up: {child.name} was drained, it is not started again", file=sys.stderr, flush=True)
            return
        child.restarts[:] = [at for at in child.restarts if now - at < RESTART_WINDOW_S] + [now]
        if child.name not in self._roles or len(child.restarts) > MAX_RESTARTS:
            raise ChildFailedError(f"{child.name} ended with code {code}")
        print(f"phaseserve up: {child.name} ended with code {code}, starting it again", file=sys.stderr, flush=True)
        port = int(self._endpoints[child.name].rsplit(":", 1)[1])
        watch = asyncio.create_task(self._end_unless_ready(await self._start_replica(child.name, port)))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _end_unless_ready(self, child: Child) -> None:
        """A replica that hangs while it loads ends after `READY_S`, and is then started again like any other."""
        try:
            await self._supervisor.wait_ready(child, READY_S)
        except ChildFailedError as error:
            if child.process.returncode is None:
                print(f"phaseserve up: {error}", file=sys.stderr, flush=True)
                child.process.kill()


async def _main(deployment: Deployment) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            deployment.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await deployment.run(stop)


def run(words: list[str]) -> int:
    """Serve until Ctrl-C."""
    arguments = parse(words)
    named = roles(arguments)
    settings = Settings.from_arguments(arguments)
    files = resolve_model(settings.model)
    print(f"model {files.name}: {files.spec.family}, {files.spec.max_context} tokens of context", flush=True)
    deployment = Deployment(settings, named, arguments)
    with contextlib.suppress(KeyboardInterrupt):
        return asyncio.run(_main(deployment))
    return 130

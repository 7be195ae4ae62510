"""One replica as a process: engine first, then the port, then requests, then a clean end.

Exit codes: 0 drained or stopped as asked, 1 broke (our own bug, or an engine that hangs), 2 refused to start (a model
or a setting is wrong; the reason is on stderr and no port was opened).
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import logging
import os
import secrets
import sys
from functools import partial

import uvloop

from contracts.control_secret import CONTROL_SECRET_VARIABLE
from contracts.errors import ConfigError, ModelError
from contracts.kv import Fingerprint
from contracts.views import ReplicaIdentity, StepCost
from replica.channel import RouterChannel
from replica.config import ReplicaConfig
from replica.data_plane import data_plane
from replica.engine_thread import EngineThread
from replica.health import Health, health_server
from replica.load import LoadedEngine, load_engine
from replica.loop import ReplicaLoop
from replica.phases import Phases
from replica.routers import RouterCounters, Routers
from replica.shutdown import Shutdown
from replica.transfer import Transfer
from scheduling.replica_core import ReplicaCore

READY_MARK = "PHASESERVE_READY"
EXIT_BROKEN = 1
EXIT_REFUSED = 2
ENGINE_END_S = 2.0

log = logging.getLogger("phaseserve.replica")


def run_replica(config: ReplicaConfig) -> int:
    """Serve until drained or stopped; the exit code. Installs signal handlers: call it from the main thread."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, engine_is_idle = runner.run(_process(config))
    if not engine_is_idle:
        log.warning("the engine's thread is still busy and cannot be interrupted: leaving without it")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


async def _process(config: ReplicaConfig) -> tuple[int, bool]:
    """The exit code, and whether the engine's thread ended."""
    shutdown = Shutdown()
    shutdown.listen_to_signals(asyncio.get_running_loop())
    watch = asyncio.create_task(shutdown.watch_parent(config.parent_pid)) if config.parent_pid else None
    thread = EngineThread()
    health = Health()
    try:
        async with health_server(health, config.host, config.health_port):
            code = await _serve(config, thread, shutdown, health)
    except (ModelError, ConfigError) as error:
        log.error("replica %s does not start: %s", config.replica_id, error)
        code = EXIT_REFUSED
    except Exception:  # the boundary of this process: whatever broke it is told, and the exit code says so
        log.exception("replica %s broke", config.replica_id)
        code = EXIT_BROKEN
    if watch is not None:
        watch.cancel()
    return code, thread.close(ENGINE_END_S)


async def _serve(config: ReplicaConfig, thread: EngineThread, shutdown: Shutdown, health: Health) -> int:
    loaded = await _load(config, thread, shutdown)
    if loaded is None:
        log.info("replica %s ended while it was loading: %s", config.replica_id, shutdown.reason)
        return 0
    gc.collect()
    gc.freeze()  # the model is here for good: no collection during a step walks through it
    async with data_plane(config, loaded.engine, _identity(config, loaded)) as (identity, transfer):
        await _serve_routers(config, loaded, thread, shutdown, health, identity, transfer)
    closing = thread.call(loaded.engine.close)
    await asyncio.wait({closing}, timeout=ENGINE_END_S)
    if closing.done():
        closing.result()
    return 0


async def _serve_routers(
    config: ReplicaConfig,
    loaded: LoadedEngine,
    thread: EngineThread,
    shutdown: Shutdown,
    health: Health,
    identity: ReplicaIdentity,
    transfer: Transfer | None,
) -> None:
    channel = RouterChannel(
        config.host,
        config.port,
        queued_messages=config.loop.queued_messages,
        control_secret=config.control_secret,
    )
    try:
        phases = Phases(loaded.engine, None if transfer is None else transfer.giver)
        routers = Routers(channel, config.loop.max_routers)
        core = _core(config, loaded)
        loop = ReplicaLoop(config.loop, identity, core, phases, thread, routers, shutdown, transfer)
        health.serving(loop.stalled, loop.not_ready)
        _announce(config, loaded, channel.endpoint)
        reason = await loop.run()
        log.info("replica %s ended: %s; %s", config.replica_id, reason, phases.summary())
        if routers.counters != RouterCounters() or channel.malformed:
            log.info("%s; %d messages of a wrong shape", routers.counters, channel.malformed)
    finally:
        channel.close()


async def _load(config: ReplicaConfig, thread: EngineThread, shutdown: Shutdown) -> LoadedEngine | None:
    """The engine; None if the process was asked to end meanwhile."""
    loading = thread.call(partial(load_engine, config))
    asked = asyncio.create_task(shutdown.asked())
    loading.add_done_callback(lambda _loading: asked.cancel())
    await asyncio.wait({asked})
    if not loading.done():
        loading.cancel()
        return None
    return loading.result()


def _core(config: ReplicaConfig, loaded: LoadedEngine) -> ReplicaCore:
    engine = loaded.engine
    return ReplicaCore(
        config.core,
        config.role,
        engine.kv_layout,
        engine.num_blocks,
        engine.spec.max_context,
        engine.spec.eos_token_ids,
        loaded.cost,
    )


def _identity(config: ReplicaConfig, loaded: LoadedEngine) -> ReplicaIdentity:
    engine = loaded.engine
    return ReplicaIdentity(
        replica_id=config.replica_id,
        incarnation=secrets.token_hex(8),
        version=importlib.metadata.version("phaseserve"),
        model=engine.spec,
        fingerprint=Fingerprint(model_digest=engine.spec.digest, layout=engine.kv_layout, numerics=engine.numerics),
        num_blocks=engine.num_blocks,
        max_running=config.core.max_running,
        max_waiting=config.core.max_waiting,
        device=engine.device,
    )


def _announce(config: ReplicaConfig, loaded: LoadedEngine, endpoint: str) -> None:
    """To the log for people, to stdout for the process that started us."""
    engine = loaded.engine
    log.info(
        "replica %s ready on %s role=%s model=%s device=%s kv_blocks=%d x %d tokens, step cost %s",
        config.replica_id,
        endpoint,
        config.role,
        engine.spec.name,
        engine.device,
        engine.num_blocks,
        engine.kv_layout.block_size,
        _cost_in_words(loaded.cost),
    )
    if not config.control_secret and config.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("whoever reaches %s may use this replica: set %s", endpoint, CONTROL_SECRET_VARIABLE)
    print(f"{READY_MARK} {endpoint}", flush=True)


def _cost_in_words(cost: StepCost) -> str:
    return (
        f"{cost.a0 * 1e3:.2f} ms + {cost.a1 * 1e3:.3f} ms/token + {cost.b3 * 1e3:.3f} ms/decode"
        f" + {cost.b2 * 1e9:.1f} ns/context token (margin {cost.margin_s * 1e3:.2f} ms)"
    )

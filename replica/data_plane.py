"""The data plane of a replica process: the transfer service is started before the control port opens, and ended after
the last request, before the engine's memory goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from contracts.engine import Engine
from contracts.errors import ConfigError
from contracts.views import ReplicaIdentity
from kvtransfer.protocol import TransferError
from kvtransfer.service import TransferService
from prefill_workers.kv_giver import KVGiver
from replica.config import ReplicaConfig
from replica.handoffs import Handoffs
from replica.inbox import TransferInbox
from replica.transfer import Transfer

log = logging.getLogger("phaseserve.replica")

START_S = 30.0
CLOSE_S = 5.0


@asynccontextmanager
async def data_plane(
    config: ReplicaConfig, engine: Engine, identity: ReplicaIdentity
) -> AsyncIterator[tuple[ReplicaIdentity, Transfer | None]]:
    """The identity with its data endpoints, and the transfer; neither for a replica that does not hand over.

    Raises `ConfigError` when the engine's KV cannot be sent from, and when the service does not start. A replica that
    would only need it in another role goes without then, and says why.
    """
    if not config.hands_over:
        yield identity, None
        return
    try:
        async with _required(config, engine, identity) as found:
            yield found
        return
    except _NoDataPlaneError as error:
        if config.must_hand_over:
            raise
        log.warning("replica %s keeps to the roles alternating and mixed: %s", config.replica_id, error.message)
    yield identity, None


class _NoDataPlaneError(ConfigError):
    """Raised before anything was yielded."""


@asynccontextmanager
async def _required(
    config: ReplicaConfig, engine: Engine, identity: ReplicaIdentity
) -> AsyncIterator[tuple[ReplicaIdentity, Transfer | None]]:
    memory = engine.kv_memory
    if memory is None:
        where = f"the KV of this engine, on {engine.device}, does not lie where the host can send it from"
        raise _NoDataPlaneError(f"role {config.role} hands KV over, but {where}", param="role")
    inbox = TransferInbox()
    settings = msgspec.structs.replace(config.transfer, enabled=True)
    me = (identity.replica_id, identity.incarnation, identity.fingerprint)
    service = TransferService(settings, me, memory, engine.num_blocks, inbox.put)
    endpoints: tuple[str, ...] = ()
    try:
        endpoints = await _started(service)
        log.info("replica %s moves KV: %s", identity.replica_id, service.describe())
        identity = msgspec.structs.replace(identity, data_endpoints=endpoints)
        giver = KVGiver(service)
        handoffs = Handoffs(service, giver, identity)
        yield identity, Transfer(giver, handoffs, inbox, lambda: service.running)
    finally:
        if endpoints:
            log.info("replica %s moved KV: %s; %s", config.replica_id, service.describe(), service.counters)
        if inbox.dropped:
            log.warning("replica %s: %d words of the data plane came faster than they were read", me[0], inbox.dropped)
        try:
            await asyncio.to_thread(service.close, CLOSE_S)
        except TransferError as error:  # its thread is a daemon, and holds the memory as long as it needs it
            log.warning("replica %s: %s", config.replica_id, error.message)


async def _started(service: TransferService) -> tuple[str, ...]:
    try:
        return await asyncio.to_thread(service.start, START_S)
    except TransferError as error:
        raise _NoDataPlaneError(f"the data plane does not start: {error.message}", param="transfer") from error

"""The transfer service of one replica: gives KV to peers and takes it in, on a thread of its own.

The owner's methods return at once and may be called from any thread, `layer_done` from the engine's. Answers are events
(`kvtransfer.events`), handed to `on_event` on the service's thread. What happens on that thread is `kvtransfer.plane`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from contracts.errors import ConfigError, PhaseServeError
from contracts.handoff import KVTicket, Peer
from contracts.kv import Fingerprint
from kvtransfer.auth import fleet_key
from kvtransfer.config import TransferConfig
from kvtransfer.counters import TransferCounters
from kvtransfer.events import TransferEvent
from kvtransfer.plane import Plane
from kvtransfer.protocol import TransferError
from kvtransfer.spans import Pool
from kvtransfer.wire import Identity

log = logging.getLogger("phaseserve.kvtransfer")


class TransferService:
    """KV hand-offs between this replica's memory and its peers'.

    identity: replica id, incarnation, fingerprint (whose layout says what `memory` is).
    memory: writable bytes, C order `[num_layers, num_blocks, block_bytes_per_layer]`; must outlive the service.
    on_event: called on the service's thread; must return quickly and not raise.
    Raises `ConfigError` for memory of another size, a missing secret, or files and addresses that cannot be used.
    """

    def __init__(
        self,
        config: TransferConfig,
        identity: tuple[str, str, Fingerprint],
        memory: memoryview,
        num_blocks: int,
        on_event: Callable[[TransferEvent], None],
    ) -> None:
        replica_id, incarnation, fingerprint = identity
        pool = Pool(fingerprint.layout, num_blocks)
        if memory.readonly or not memory.c_contiguous or memory.nbytes != pool.num_bytes:
            raise ConfigError(
                f"the KV memory must be {pool.num_bytes} writable contiguous bytes ({num_blocks} blocks), "
                f"but is {memory.nbytes} bytes"
            )
        self.counters = TransferCounters()
        self._plane = Plane(
            config,
            fleet_key(config.secret),
            Identity(replica_id=replica_id, incarnation=incarnation, fingerprint=fingerprint),
            pool,
            memory.cast("B"),
            on_event,
            self.counters,
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started: concurrent.futures.Future[tuple[str, ...]] = concurrent.futures.Future()
        self._close_s = 0.0
        self._lock = threading.Lock()
        self._woken = False
        self._steps: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def start(self, deadline_s: float) -> tuple[str, ...]:
        """Listen. Returns the endpoints to tell peers. Raises `ConfigError` or `TransferError`, after closing."""
        self._thread = threading.Thread(target=self._run, name="kvtransfer", daemon=True)
        self._thread.start()
        try:
            return self._started.result(deadline_s)
        except TimeoutError:
            self.close(deadline_s)
            raise TransferError(f"the data plane did not start within {deadline_s:g} s") from None

    def close(self, deadline_s: float) -> None:
        """End every connection, task and the thread; then the memory is not touched any more. Idempotent.

        Raises `TransferError` if the thread does not end in time.
        """
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        self._close_s = deadline_s
        if loop is not None and stop is not None:
            self._call(stop.set)
        thread.join(deadline_s + 1.0)
        if thread.is_alive():
            raise TransferError(f"the data plane did not end within {deadline_s:g} s")
        self._thread = None

    @property
    def running(self) -> bool:
        """False before `start`, after `close`, and when the data plane broke: then no answer comes any more."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    # --- links

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """Connect to these replicas and no others; answered by `Linked` and `Unlinked`."""
        self._call(self._plane.set_peers, tuple(peers))

    def probe(self, peer_id: str, num_bytes: int) -> None:
        """Measure a link with about `num_bytes`; answered by `Measured`, unless a transfer begins meanwhile."""
        self._call(self._plane.probe, peer_id, num_bytes)

    # --- receiver

    def reserve(self, ticket: KVTicket, sender_id: str) -> None:
        """Let `sender_id` write under this ticket; answered by `Received` or `Lost`."""
        self._call(self._plane.reserve, ticket, sender_id)

    # --- sender

    def expected(self, ticket_id: str, expected_s: float) -> None:
        """The ticket's receiver is told that its KV begins to come in about `expected_s`."""
        self._call(self._plane.expected, ticket_id, expected_s)

    def send(self, ticket: KVTicket, blocks: Sequence[int], ready_tokens: int) -> None:
        """Send a sequence's KV as it is computed. `blocks`: its whole block table; the first `ready_tokens` tokens are
        there already. Answered by `Sent` or `SendFailed`."""
        self._call(self._plane.send, ticket, tuple(blocks), ready_tokens)

    def layer_done(self, ticket_id: str, layer: int, num_tokens: int) -> None:
        """The KV of the sequence's first `num_tokens` tokens lies in memory for this layer. Costs microseconds."""
        self._call(self._plane.sender.layer_done, ticket_id, layer, num_tokens)

    def commit(self, ticket_id: str, payload: bytes) -> None:
        """All layers are computed; `payload` is for the receiver's owner."""
        self._call(self._plane.sender.commit, ticket_id, payload)

    # --- either side

    def stop(self, ticket_id: str, reason: str) -> None:
        """Give a hand-off up; answered by `Closed` once nothing touches its memory."""
        self._call(self._plane.stop, ticket_id, reason)

    def describe(self) -> str:
        """One line for the log: where it listens, transports, and each link with device and measured rate."""
        return self._plane.description

    # --- the thread

    def _call(self, step: Callable[..., None], *arguments: Any) -> None:
        """Have the loop make this step, in the order of the calls. The loop is woken once for all that wait."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        with self._lock:
            self._steps.append((step, arguments))
            wake, self._woken = not self._woken, True
        if wake:
            self._wake(loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop closed just now; nobody waits for an answer either
            loop.call_soon_threadsafe(self._take_steps, loop)

    def _take_steps(self, loop: asyncio.AbstractEventLoop) -> None:
        done = False
        try:
            while not done:
                with self._lock:
                    step, arguments = self._steps.popleft() if self._steps else (None, ())
                    done = step is None
                    self._woken = not done
                if step is not None:
                    step(*arguments)
        finally:
            if not done:  # one step raised, which the loop reports; the others are still to be made
                self._wake(loop)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except PhaseServeError as error:
            self._fail_start(error)
        except Exception as error:
            log.exception("the data plane broke")
            self._fail_start(TransferError(f"the data plane broke: {error!r}"))

    def _fail_start(self, error: PhaseServeError) -> None:
        if not self._started.done():
            self._started.set_exception(error)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            endpoints = await self._plane.start()
            self._started.set_result(endpoints)
            await self._plane.run(self._stop)
        finally:
            await self._plane.close(self._close_s)

"""One HTTP exchange: the call, the watch on the client's socket, the deadline, and exactly one recorded outcome."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import Request
from starlette.types import Send

from contracts.errors import Cancelled, DeadlineExceeded, PhaseServeError
from contracts.request import FinishReason
from router.answers import Answers, error_events
from router.call import Call
from router.event_writer import EventWriter
from router.fleet import Fleet
from router.generation import Generation
from router.metrics import RouterMetrics, outcome_of_status
from router.token_table import TokenTable

LAST_WRITE_S = 5.0
"""How long past its deadline a client that does not read may still be written to."""


class Exchange:
    """Opened when the request is valid; `close` must follow. The client's socket is watched from then on, so that a
    client that leaves is noticed in any state, also when nothing is being written (lemonade PR 3133)."""

    def __init__(
        self,
        request: Request,
        generation: Generation,
        *,
        arrived_s: float,
        fleet: Fleet,
        metrics: RouterMetrics,
        table: TokenTable,
        deadline_s: float,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._deadline_s = deadline_s
        self.call: Call = fleet.open(generation, arrived_s)
        self._answers = Answers(self.call, table)
        loop = asyncio.get_running_loop()
        self.write_until_s = loop.time() + deadline_s + LAST_WRITE_S
        self._expiry = loop.call_later(deadline_s, self._expire)
        self._watch = loop.create_task(self._watch_client(request))
        self._outcome: str | None = None

    async def whole(self) -> bytes:
        """The complete answer. Raises the call's error."""
        self.call.on_change = self._goes_on
        while not self.call.ended:
            await self._changed()
        self._succeed()
        return self._answers.whole()

    async def first(self) -> bytes:
        """The first events of a stream. Raises the call's error: until here the answer may still be a status."""
        events = b""
        while not events:
            events = self._answers.events(await self._changed())
        return events

    async def events(self, first: bytes, send: Send) -> None:
        """Write the whole stream's body from its first events on."""
        writer = EventWriter(self.call, self._answers, send)
        try:
            await writer.write(first)
            while not self._answers.all_closed:
                with writer.at_arrival():
                    changed = await self._changed()
                await writer.write(self._answers.events(changed))
            self._succeed()
            await writer.write(self._answers.closing(), last=True)
        except PhaseServeError as error:
            await writer.write(error_events(error), last=True)
        finally:
            writer.close()

    def close(self) -> None:
        """Cancel what is still under way and record the outcome. Idempotent."""
        self._expiry.cancel()
        self._watch.cancel()
        self._fleet.close(self.call)
        if self._outcome is None:
            self._finish("cancelled")

    def _goes_on(self, index: int) -> bool:
        return self.call.choices[index].finish_reason is None

    async def _changed(self) -> list[int]:
        try:
            return await self.call.wait()
        except PhaseServeError as error:
            if self._outcome is None:
                self._finish(outcome_of_status(error.status))
            raise

    def _succeed(self) -> None:
        stopped = all(choice.finish_reason is FinishReason.STOP for choice in self.call.choices)
        self._finish("stop" if stopped else "length")

    def _finish(self, outcome: str) -> None:
        self._outcome = outcome
        self._metrics.requests.labels(self.call.generation.endpoint.value, outcome).inc()

    def _expire(self) -> None:
        self.call.fail(DeadlineExceeded(f"the request took longer than {self._deadline_s:g} s"))
        self._fleet.close(self.call)

    async def _watch_client(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        self.call.fail(Cancelled("the client left"))
        self._fleet.close(self.call)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Words of another thread: none that ends something is lost, signs of life do not pile up, nobody waits."""

from __future__ import annotations

import asyncio
import threading

from kvtransfer.events import Arriving, Closed, Measured, Sent, TransferEvent
from replica.inbox import TransferInbox


async def take_all(inbox: TransferInbox, count: int) -> list[TransferEvent]:
    taken: list[TransferEvent] = []
    async with asyncio.timeout(10):
        while len(taken) < count:
            taken += await inbox.take()
    return taken


async def test_events_of_a_thread_arrive_in_order() -> None:
    inbox = TransferInbox()
    events = [Sent(str(number), number) for number in range(1000)]

    def put_all() -> None:
        for event in events:
            inbox.put(event)

    thread = threading.Thread(target=put_all)
    thread.start()
    assert await take_all(inbox, 1000) == events
    thread.join()


async def test_of_a_tickets_signs_of_life_only_the_latest_waits() -> None:
    inbox = TransferInbox()
    for left in range(100, 0, -1):
        inbox.put(Arriving("a", left, 1.0, 0.0))
    inbox.put(Arriving("b", 5, 1.0, 0.0))
    assert await take_all(inbox, 2) == [Arriving("a", 1, 1.0, 0.0), Arriving("b", 5, 1.0, 0.0)]
    inbox.put(Arriving("a", 0, 1.0, 0.0))
    assert await take_all(inbox, 1) == [Arriving("a", 0, 1.0, 0.0)]


async def test_over_the_limit_only_what_can_be_missed_is_dropped() -> None:
    inbox = TransferInbox(limit=2)
    for number in range(4):
        inbox.put(Measured("d", number, 1.0, False))
        inbox.put(Closed(str(number)))
    assert await take_all(inbox, 5) == [Measured("d", 0, 1.0, False), *(Closed(str(number)) for number in range(4))]
    assert inbox.dropped == 3


def test_a_word_after_the_loop_is_closed_is_no_error() -> None:
    async def make() -> TransferInbox:
        return TransferInbox()

    inbox = asyncio.run(make())
    inbox.put(Closed("a"))

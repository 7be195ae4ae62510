"""What goes wrong on the way ends one hand-off, on both sides, soon, by name; the next one works."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvtransfer.config import FaultName, Faults
from kvtransfer.events import Closed, Linked, Lost, Received, SendFailed, Sent, Unlinked

TABLE = (1, 0, 7, 8)
BLOCKS = (5, 6, 9, 2)


@pytest.mark.parametrize("which", [1, 4])
def test_corrupt_bytes_cost_one_hand_off(rig: Any, which: int) -> None:
    """Others under way at the same time are not affected."""
    giver, taker = rig.pair(faults=Faults(on_put={which: "corrupt"}), chunk_bytes=2048, window=1)
    bad, good = rig.ticket(taker, BLOCKS, 64), rig.ticket(taker, (20, 21), 32)
    rig.begin(giver, taker, bad, TABLE)
    rig.begin(giver, taker, good, (11, 10))
    rig.compute(giver, bad, 0, 16)
    rig.compute(giver, good, 0, 16)
    lost = taker.until(Lost, bad.ticket_id)
    assert lost.corrupt
    assert "checksum" in lost.reason
    assert "checksum" in giver.until(SendFailed, bad.ticket_id).reason
    taker.until(Received, good.ticket_id)
    giver.until(Sent, good.ticket_id)
    rig.check(giver, taker, good, (11, 10))
    for replica in (giver, taker):
        replica.service.stop(bad.ticket_id, "it was lost")
        replica.until(Closed, bad.ticket_id, within_s=5.0)
    assert taker.service.counters.checksum_errors == 1
    assert not taker.of(Received, bad.ticket_id)
    rig.hand_over(giver, taker, rig.ticket(taker, BLOCKS, 64), TABLE)


@pytest.mark.parametrize("fault", ["drop", "truncate"])
def test_what_does_not_arrive_is_lost_within_the_deadline(rig: Any, fault: FaultName) -> None:
    giver, taker = rig.pair(faults=Faults(on_put={2: fault}), chunk_bytes=2048)
    bad = rig.ticket(taker, BLOCKS, 64)
    start = time.monotonic()
    rig.begin(giver, taker, bad, TABLE)
    rig.compute(giver, bad, 0, 16)
    taker.until(Lost, bad.ticket_id)
    giver.until(SendFailed, bad.ticket_id)
    assert time.monotonic() - start < 5.0
    rig.hand_over(giver, taker, rig.ticket(taker, BLOCKS, 64), TABLE)


@pytest.mark.parametrize("fault", [Faults(seed=3, reorder=0.5), Faults(seed=3, repeat=0.5)])
def test_order_and_repetition_do_not_matter(rig: Any, fault: Faults) -> None:
    """Every block is counted once, wherever and how often its put was announced."""
    giver, taker = rig.pair(faults=fault, chunk_bytes=2048)
    for _ in range(3):
        rig.hand_over(giver, taker, rig.ticket(taker, BLOCKS, 64), TABLE, chunk=16)


def test_a_failed_put_is_told_at_once(rig: Any) -> None:
    """The receiver does not wait for what will not come, and the next hand-off goes over a new connection."""
    giver, taker = rig.pair(faults=Faults(on_put={3: "fail"}), chunk_bytes=2048, window=1)
    bad = rig.ticket(taker, BLOCKS, 64)
    rig.begin(giver, taker, bad, TABLE)
    for layer in range(3):
        giver.service.layer_done(bad.ticket_id, layer, 48)
    start = time.monotonic()
    assert "put failed" in giver.until(SendFailed, bad.ticket_id).reason
    assert "put failed" in taker.until(Lost, bad.ticket_id).reason
    assert time.monotonic() - start < 1.5
    for replica in (giver, taker):
        replica.service.stop(bad.ticket_id, "it was lost")
        replica.until(Closed, bad.ticket_id, within_s=5.0)
    for _ in range(3):
        rig.hand_over(giver, taker, rig.ticket(taker, BLOCKS, 64), TABLE)
    assert not giver.of(Unlinked)


@pytest.mark.parametrize("faults", [Faults(stall_after_puts=2), Faults(die_after_puts=2)])
def test_a_transport_that_gets_stuck(rig: Any, faults: Faults) -> None:
    """Both sides know within the silence bound; `stop` is answered."""
    giver, taker = rig.pair(faults=faults, chunk_bytes=2048, window=2, silence_s=1.0)
    bad = rig.ticket(taker, BLOCKS, 64)
    start = time.monotonic()
    rig.begin(giver, taker, bad, TABLE)
    rig.compute(giver, bad, 0, 64)
    giver.until(SendFailed, bad.ticket_id)
    taker.until(Lost, bad.ticket_id)
    assert time.monotonic() - start < 6.0
    for replica in (giver, taker):
        replica.service.stop(bad.ticket_id, "it was lost")
        replica.until(Closed, bad.ticket_id, within_s=5.0)


def test_random_faults_never_leave_a_wrong_block(rig: Any) -> None:
    """Whatever is received is right; everything ends on both sides; everything closes."""
    faults = Faults(seed=7, drop=0.01, truncate=0.01, corrupt=0.02, reorder=0.05, repeat=0.05)
    giver, taker = rig.pair(faults=faults, chunk_bytes=4096, silence_s=1.0)
    tickets = [rig.ticket(taker, (2 * i, 2 * i + 1), 32) for i in range(24)]
    for i, ticket in enumerate(tickets):
        rig.begin(giver, taker, ticket, (63 - i, i))
        rig.compute(giver, ticket, 0, 16)
    deadline = time.monotonic() + 20.0
    while len(taker.of(Lost)) + len(taker.of(Received)) < 24 or len(giver.of(Sent)) + len(giver.of(SendFailed)) < 24:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for i, ticket in enumerate(tickets):
        if taker.of(Received, ticket.ticket_id):
            rig.check(giver, taker, ticket, (63 - i, i))
            assert not taker.of(Lost, ticket.ticket_id)
        for replica in (giver, taker):
            replica.service.stop(ticket.ticket_id, "over")
            replica.until(Closed, ticket.ticket_id, within_s=6.0)
    assert taker.of(Lost)
    assert taker.of(Received)
    assert len(giver.of(Linked)) == 1

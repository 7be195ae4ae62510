"""Whole hand-offs between two services: the right bytes in the right blocks, whatever the tables and the chunks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from contracts.handoff import FINISHED
from contracts.kv import Fingerprint, KVLayout
from kvtransfer.config import Faults
from kvtransfer.events import Arriving, Closed, Lost, Measured, Received, SendFailed, Sent


def test_two_services_hand_over(rig: Any) -> None:
    giver, taker = rig.pair()
    ticket = rig.ticket(taker, (5, 6, 9, 2), 60)
    received = rig.hand_over(giver, taker, ticket, (1, 0, 7, 8))
    assert received.payload == b"first token of " + ticket.ticket_id.encode()
    assert received.report.transport == rig.scheme
    assert received.report.prefill_replica_id == "p0"
    assert received.report.num_bytes == 4 * 3 * taker.fingerprint.layout.block_bytes_per_layer
    assert taker.until(Arriving, ticket.ticket_id).expected_s == 0.0
    assert (taker.service.counters.received, taker.service.counters.bytes_in) == (1, received.report.num_bytes)
    assert (giver.service.counters.sent, giver.service.counters.bytes_out) == (1, received.report.num_bytes)


@pytest.mark.parametrize("seed", range(4))
def test_any_tables_chunks_and_prefixes(rig: Any, seed: int) -> None:
    """Block tables in any order, chunks of any size, any prefix that either side has already."""
    chance = random.Random(seed)
    giver, taker = rig.pair(chunk_bytes=chance.choice([1, 5000, 20_000, 1 << 20]), window=chance.choice([1, 3, 8]))
    for _ in range(6):
        num_tokens = chance.randint(1, 300)
        skip = chance.randint(0, (num_tokens - 1) // 16) * 16
        blocks = tuple(chance.sample(range(64), -(-(num_tokens - skip) // 16)))
        table = tuple(chance.sample(range(64), -(-num_tokens // 16)))
        ready = chance.choice([0, chance.randint(0, num_tokens), num_tokens])
        before = taker.pool.copy()
        received = rig.hand_over(
            giver, taker, rig.ticket(taker, blocks, num_tokens, skip), table, ready=ready, chunk=chance.randint(1, 200)
        )
        assert received.report.num_bytes == len(blocks) * 3 * 2048
        others = [block for block in range(64) if block not in blocks]
        assert (taker.pool[:, others] == before[:, others]).all()


@pytest.mark.parametrize(("mine", "theirs"), [(16, 32), (32, 16), (8, 32), (32, 8)])
def test_other_block_sizes(rig: Any, make_layout: Callable[..., KVLayout], mine: int, theirs: int) -> None:
    """One block size divides the other: the sender cuts its blocks into the receiver's."""
    sizes = [Fingerprint(model_digest="m", layout=make_layout(block_size=size)) for size in (mine, theirs)]
    giver, taker = (rig.replica(name, fingerprint=size) for name, size in zip(("p0", "d0"), sizes, strict=True))
    rig.link(giver, taker)
    for num_tokens, skip, chunk in ((100, 0, 7), (97, 32, 1000), (64, 0, 40), (1, 0, 1), (65, 64, 65)):
        chance = random.Random(num_tokens)
        blocks = tuple(chance.sample(range(64), -(-(num_tokens - skip) // theirs)))
        table = tuple(chance.sample(range(64), -(-num_tokens // mine)))
        rig.hand_over(giver, taker, rig.ticket(taker, blocks, num_tokens, skip), table, chunk=chunk)


def test_many_at_once(rig: Any) -> None:
    """32 tickets under way together, few puts at a time: all arrive, none waits for ever."""
    giver, taker = rig.pair(window=2, max_concurrent_transfers=5, chunk_bytes=2048)
    tickets = [rig.ticket(taker, (2 * i, 2 * i + 1), 17 + i % 16) for i in range(32)]
    tables = [(63 - 2 * i, 2 * i) for i in range(32)]
    for ticket, table in zip(tickets, tables, strict=True):
        rig.begin(giver, taker, ticket, table)
    for ticket in tickets:
        rig.compute(giver, ticket, 0, 16)
    for ticket, table in zip(tickets, tables, strict=True):
        taker.until(Received, ticket.ticket_id)
        giver.until(Sent, ticket.ticket_id)
        rig.check(giver, taker, ticket, table)
    assert taker.service.counters.received == 32
    assert not taker.of(Lost)


def test_one_sender_two_receivers_and_back(rig: Any) -> None:
    """Every replica gives and takes at once."""
    first, second, third = (rig.replica(name) for name in ("a", "b", "c"))
    for one, others in ((first, (second, third)), (second, (first,))):
        rig.link(one, *others)
    first.memory[:] = bytes(range(256)) * (len(first.memory) // 256)
    rig.hand_over(first, second, rig.ticket(second, (3,), 16), (4,))
    rig.hand_over(first, third, rig.ticket(third, (5,), 9), (4,))
    rig.hand_over(second, first, rig.ticket(first, (6,), 16), (3,))
    assert (first.pool[:, 6] == first.pool[:, 4]).all()


def test_the_engine_thread_never_waits(memory_rig: Any) -> None:
    """On a link that moves next to nothing, what the engine's thread calls returns at once."""
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=200_000.0), chunk_bytes=2048)
    ticket = memory_rig.ticket(taker, tuple(range(32)), 512)
    memory_rig.begin(giver, taker, ticket, tuple(range(32)))
    memory_rig.compute(giver, ticket, 0, 16)
    assert not taker.of(Received), "it waited for the transfer"
    assert taker.until(Received, ticket.ticket_id).report.transfer_s > 0.5


def test_the_report_tells_hidden_from_exposed(memory_rig: Any) -> None:
    """A layer every 50 ms over a link that needs 10 ms for it: nearly all is hidden. All at once: nearly nothing is."""
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=1.6e6))
    table = tuple(range(8))
    slow = memory_rig.ticket(taker, table, 128)
    memory_rig.begin(giver, taker, slow, table)
    for layer in range(3):
        time.sleep(0.05)
        giver.service.layer_done(slow.ticket_id, layer, 128)
    giver.service.commit(slow.ticket_id, b"")
    hidden = taker.until(Received, slow.ticket_id).report
    at_once = memory_rig.hand_over(giver, taker, memory_rig.ticket(taker, table, 128), table).report
    assert hidden.hidden_share > 0.5
    assert at_once.hidden_share < 0.3


def test_a_sender_that_waits_says_so(rig: Any) -> None:
    """While the prompt still queues the receiver is told how long, and nobody else learns the ticket's id."""
    giver, taker = rig.replica("p0"), rig.replica("d0")
    other = rig.replica("d1")
    rig.link(giver, taker, other)
    ticket = rig.ticket(taker, (1,), 16)
    taker.service.reserve(ticket, "p0")
    time.sleep(0.05)
    giver.service.expected(ticket.ticket_id, 1.5)
    alive = taker.until(Arriving, ticket.ticket_id)
    assert 0.5 < alive.expected_s <= 1.5
    assert (alive.bytes_left, alive.bytes_per_s) == (3 * 2048, 0.0)
    assert not other.of(Arriving)
    giver.service.send(ticket, (2,), 0)
    rig.compute(giver, ticket, 0, 16)
    taker.until(Received, ticket.ticket_id)


def test_signs_of_life_are_few(memory_rig: Any) -> None:
    """Hundreds of puts within a moment are some ten events, not hundreds."""
    giver, taker = memory_rig.pair(chunk_bytes=2048, faults=Faults(bytes_per_s=1.5e6))
    ticket = memory_rig.ticket(taker, tuple(range(64)), 1024)
    start = time.monotonic()
    memory_rig.hand_over(giver, taker, ticket, tuple(range(64)))
    signs = taker.of(Arriving, ticket.ticket_id)
    assert 2 <= len(signs) <= 3 + 10 * (time.monotonic() - start)
    assert [sign.bytes_left for sign in signs] == sorted((sign.bytes_left for sign in signs), reverse=True)
    assert signs[-1].bytes_per_s > 0.0


def test_links_are_measured(memory_rig: Any) -> None:
    """By a probe when they come up, by every transfer that is long enough, and when asked."""
    giver, taker = memory_rig.pair(faults=Faults(bytes_per_s=20e6, spare_probes=False))
    probe = giver.until(Measured, "d0")
    assert probe.probe
    assert probe.num_bytes / probe.duration_s == pytest.approx(20e6, rel=0.3)
    table = tuple(range(64))
    for _ in range(20):
        memory_rig.hand_over(giver, taker, memory_rig.ticket(taker, table, 1024), table)
    real = sorted(one.num_bytes / one.duration_s for one in giver.of(Measured) if not one.probe)
    assert real[len(real) // 2] == pytest.approx(20e6, rel=0.2)
    giver.service.probe("d0", 1 << 20)
    giver.until(Measured, "d0", count=len(giver.of(Measured)) + 1)
    assert "MB/s" in giver.service.describe()


def test_what_cannot_be_sent_or_taken_is_said_at_once(rig: Any) -> None:
    giver, taker = rig.pair()
    wrong = [
        rig.ticket(taker, (1, 2), 16),  # more blocks than tokens
        rig.ticket(taker, (1, 1), 32),  # one block twice
        rig.ticket(taker, (64,), 16),  # no such block
        rig.ticket(taker, (1,), 16, 3),  # not whole blocks skipped
    ]
    for ticket in wrong:
        taker.service.reserve(ticket, "p0")
        assert taker.until(Lost, ticket.ticket_id).reason
    taker.service.reserve(stray := rig.ticket(taker, (1,), 16), "nobody")
    assert "nobody" in taker.until(Lost, stray.ticket_id).reason
    elsewhere = rig.ticket(rig.replica("d9", start=False), (1,), 16)
    giver.service.send(elsewhere, (1,), 0)
    assert "d9" in giver.until(SendFailed, elsewhere.ticket_id).reason
    giver.service.send(short := rig.ticket(taker, (1, 2), 32), (1,), 0)
    assert "2 blocks" in giver.until(SendFailed, short.ticket_id).reason or giver.of(SendFailed, short.ticket_id)


def test_a_sender_whose_sequence_has_ended_well_says_so(rig: Any) -> None:
    giver, taker = rig.pair()
    ticket = rig.ticket(taker, (3, 4), 32)
    taker.service.reserve(ticket, "p0")
    giver.service.send(ticket, (1, 2), 16)
    giver.service.stop(ticket.ticket_id, FINISHED)
    giver.until(Closed, ticket.ticket_id, within_s=5.0)
    lost = taker.until(Lost, ticket.ticket_id, within_s=5.0)
    assert lost.finished
    assert "the last one" in lost.reason
    taker.service.stop(ticket.ticket_id, FINISHED)
    taker.until(Closed, ticket.ticket_id, within_s=5.0)
    assert taker.service.counters.lost == 0


def test_stop_at_any_time(rig: Any) -> None:
    """Either side may stop before, during and after; each `stop` is answered once, and nothing else is said."""
    giver, taker = rig.pair()
    for moment in range(4):
        for stopping, other in ((giver, taker), (taker, giver)):
            ticket = rig.ticket(taker, (3, 4), 32)
            taker.service.reserve(ticket, "p0")
            if moment >= 1:
                giver.service.send(ticket, (1, 2), 16)
            if moment >= 2:
                giver.service.layer_done(ticket.ticket_id, 0, 32)
            if moment >= 3:
                rig.compute(giver, ticket, 0, 32)
                taker.until(Received, ticket.ticket_id)
                giver.until(Sent, ticket.ticket_id)
            time.sleep(0.02)
            stopping.service.stop(ticket.ticket_id, "the client left")
            stopping.until(Closed, ticket.ticket_id, within_s=5.0)
            other.service.stop(ticket.ticket_id, "the other side stopped")
            other.until(Closed, ticket.ticket_id, within_s=5.0)
    rig.hand_over(giver, taker, rig.ticket(taker, (3, 4), 32), (1, 2))


def test_close_ends_everything_at_any_time(memory_rig: Any) -> None:
    """Without a start, right after it, and twice; the rig checks that nothing is left."""
    for started in (False, True):
        replica = memory_rig.replica("a", start=started)
        replica.service.close(2.0)
        replica.service.close(2.0)
        replica.service.stop("00" * 16, "too late")

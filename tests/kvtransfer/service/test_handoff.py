"""Whole hand-offs between two services: the right bytes in the right blocks, whatever the tables and the chunks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from contracts.kv import Fingerprint
from kvtransfer.events import Arriving, Linked, Measured, Received, Sent


def test_two_services_hand_over(rig: Any) -> None:
    giver, taker = rig.pair()
    ticket = rig.ticket(taker, (5, 6, 9, 2), 60)
    received = rig.hand_over(giver, taker, ticket, (1, 0, 7, 8))
    assert received.payload == b"first token of " + ticket.ticket_id.encode()
    assert received.report.transport == rig.scheme
    assert received.report.prefill_replica_id == "p0"
    assert received.report.num_bytes == 4 * 3 * taker.fingerprint.layout.block_bytes_per_layer
    assert taker.until(Arriving, ticket.ticket_id).expected_s == 0.0

"""Control messages: what is encoded comes back, and nothing else is understood."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ProtocolError
from contracts.kv import Fingerprint, KVLayout
from kvtransfer import wire
from kvtransfer.channel import ConnectionEnded, read_frame
from kvtransfer.protocol import TransferError

LAYOUT = KVLayout(num_layers=2, num_kv_heads=3, head_dim=5, block_size=16, dtype="bfloat16")
TICKET = "0123456789abcdef" * 2
MESSAGES: list[wire.Message] = [
    wire.Offer(
        bulk=(wire.BulkOffer(scheme="tcp", endpoint="tcp://a:1", scratch_endpoint="tcp://a:2"),), scratch_slot=b"s"
    ),
    wire.Chosen(scheme="tcp", device="eth0"),
    wire.Ready(),
    wire.Begin(ticket_id=TICKET),
    wire.Opened(ticket_id=TICKET),
    wire.Expect(name=b"n" * 16, expected_s=1.5),
    wire.Streaming(ticket_id=TICKET),
    wire.ComputeDone(ticket_id=TICKET),
    wire.Commit(ticket_id=TICKET, num_puts=3, num_bytes=1 << 40, digest=(1 << 64) - 1, payload=b"\0\xff"),
    wire.Ack(ticket_id=TICKET, measured_bytes=5, measured_s=0.25),
    wire.Abort(ticket_id=TICKET, reason="r"),
    wire.Stopped(ticket_id=TICKET),
    wire.ProbeBegin(probe_id=7, num_bytes=8, verify=True),
    wire.ProbeResult(probe_id=7, intact=True, tail_bytes=4, tail_s=0.5),
    wire.Ping(nonce=1),
    wire.Pong(nonce=1),
    wire.Bye(reason="done"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_the_list_is_complete() -> None:
    assert {type(message) for message in MESSAGES} == set(wire.Message.__args__)


@given(st.binary(max_size=200))
def test_rubbish_is_a_protocol_error(data: bytes) -> None:
    try:
        message = wire.decode(data)
    except ProtocolError:
        return
    assert wire.decode(wire.encode(message)) == message


def test_identities() -> None:
    mine = wire.Identity(replica_id="a", incarnation="1", fingerprint=Fingerprint(model_digest="m", layout=LAYOUT))
    assert wire.decode_identity(wire.encode(mine)) == mine
    other = wire.Identity(replica_id="a", incarnation="1", fingerprint=mine.fingerprint, protocol=99)
    with pytest.raises(ProtocolError, match="99"):
        wire.decode_identity(wire.encode(other))
    with pytest.raises(ProtocolError, match="identity"):
        wire.decode_identity(b"\x00")


@pytest.mark.parametrize("ticket_id", ["", "00" * 15, "00" * 17, "zz" * 16, "0 " * 16])
def test_slots_are_named_by_real_ticket_ids_only(ticket_id: str) -> None:
    assert wire.slot_id(TICKET) == bytes.fromhex(TICKET)
    with pytest.raises(ValueError):
        wire.slot_id(ticket_id)


def test_a_ticket_name_does_not_tell_the_ticket() -> None:
    assert wire.ticket_name(TICKET) != wire.slot_id(TICKET)
    assert len({wire.ticket_name(f"{i:032x}") for i in range(1000)}) == 1000


async def test_a_broken_connection_is_named_though_its_error_has_no_text() -> None:
    reader = asyncio.StreamReader()
    reader.set_exception(ConnectionResetError())
    with pytest.raises(ConnectionEnded, match="ConnectionResetError"):
        await read_frame(reader, 100)


async def test_frames_are_bounded() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(wire.frame(b"hello") + wire.frame(b"") + wire.LENGTH.pack(101))
    assert await read_frame(reader, 100) == b"hello"
    assert await read_frame(reader, 100) == b""
    with pytest.raises(TransferError, match="101"):
        await read_frame(reader, 100)
    reader.feed_eof()
    with pytest.raises(TransferError, match="closed"):
        await read_frame(reader, 100)
    with pytest.raises(ValueError, match="frame"):
        wire.frame(bytes(wire.MAX_FRAME_BYTES + 1))

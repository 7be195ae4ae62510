"""Pieces of a probe that land before its announcement is read are counted, and those of an earlier probe are not."""

from __future__ import annotations

from kvtransfer.probe import PIECE_BYTES, SCRATCH_BYTES, TEST_BYTES, ProbeReceipt, scratch_spans
from kvtransfer.wire import PROBE_NOTE, ProbeBegin


def test_a_whole_probe_may_come_before_its_announcement() -> None:
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    receipt = ProbeReceipt(scratch_spans(0))
    for number in range(100):
        note = PROBE_NOTE.pack(0, 7 + (number >= 40), 0)  # the first forty are of probe 7, which gave way
        assert receipt.landed(number * 0.01, TEST_BYTES, PIECE_BYTES, note, scratch) is None
    begin = ProbeBegin(probe_id=8, num_bytes=60 * PIECE_BYTES, verify=False)
    result = receipt.begin(begin, scratch)
    assert result is not None
    assert result.probe_id == 8
    assert 0.0 < result.tail_s < 0.6
    assert receipt.early == []

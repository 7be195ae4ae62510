"""Copies out of another process: any cut of both sides, and processes that are gone."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer import process_memory
from kvtransfer.process_memory import PeerMemoryUnreadable, Piece, host_identity, read

pytestmark = pytest.mark.skipif(process_memory.unavailable() is not None, reason=str(process_memory.unavailable()))


@given(data=st.data(), length=st.integers(0, 3000))
def test_any_cut(data: st.DataObject, length: int) -> None:
    source = np.frombuffer(os.urandom(max(1, length)), np.uint8)
    target = np.zeros(max(1, length), np.uint8)

    def pieces(base: int) -> list[Piece]:
        cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=8)))
        edges = [0, *cuts, length]
        return [(base + a, b - a) for a, b in itertools.pairwise(edges)]

    assert read(os.getpid(), pieces(target.ctypes.data), pieces(source.ctypes.data))
    assert target[:length].tobytes() == source[:length].tobytes()


def test_more_pieces_than_one_call_takes() -> None:
    source = np.arange(10_000, dtype=np.uint16).view(np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(0).permutation(5000)
    there = [(source.ctypes.data + 4 * int(i), 4) for i in order]
    assert read(os.getpid(), [(target.ctypes.data, source.nbytes)], there)
    assert (target.view(np.uint32) == source.view(np.uint32)[order]).all()


def test_stopping_in_between() -> None:
    source, target = np.ones(40 << 20, np.uint8), np.zeros(40 << 20, np.uint8)
    asked = iter([False, True])
    assert not read(
        os.getpid(), [(target.ctypes.data, 40 << 20)], [(source.ctypes.data, 40 << 20)], lambda: next(asked)
    )
    assert 0 < int(target.sum()) < 40 << 20


def test_addresses_that_are_not_mapped() -> None:
    target = np.zeros(100, np.uint8)
    with pytest.raises(PeerMemoryUnreadable, match="cannot read the memory of process"):
        read(os.getpid(), [(target.ctypes.data, 100)], [(4096, 100)])
    with pytest.raises(ValueError, match="length"):
        read(os.getpid(), [(target.ctypes.data, 100)], [(target.ctypes.data, 99)])


def _child(pipe: Connection) -> None:
    data = np.arange(256, dtype=np.uint8)
    process_memory.allow_reading()
    pipe.send((data.ctypes.data, host_identity()))
    pipe.recv()


def test_another_process_alive_and_dead() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs,))
    child.start()
    assert ours.poll(30.0)
    address, identity = ours.recv()
    assert identity == host_identity()
    target = np.zeros(256, np.uint8)
    assert child.pid is not None
    assert read(child.pid, [(target.ctypes.data, 256)], [(address, 256)])
    assert target.tolist() == list(range(256))
    ours.send(None)
    child.join(10.0)
    with pytest.raises(PeerMemoryUnreadable):
        read(child.pid, [(target.ctypes.data, 256)], [(address, 256)])

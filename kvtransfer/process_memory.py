"""Reading another process's memory on the same host (Linux, `process_vm_readv`), and telling whether that can work.

The kernel copies once, straight from the other process into ours; it needs the right to trace that process: same user,
same pid namespace, and under Yama's `ptrace_scope = 1` the other process's consent (`allow_reading`).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_PIECES_PER_CALL = 1024  # IOV_MAX
MAX_BYTES_PER_CALL = 16 << 20  # a call cannot be interrupted; this is a few milliseconds
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1).value
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")

Piece = tuple[int, int]
"""`(address, length)`"""


class PeerMemoryUnreadable(OSError):
    """The other process is gone, does not map these addresses, or may not be read."""


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    libc.process_vm_readv.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return libc


def host_identity() -> str:
    """Equal in two processes if and only if they share the kernel, the pid namespace and the network namespace.

    Processes in different network namespaces count as different hosts although the kernel would copy between them: a
    link that was shaped or cut on purpose is not to be bypassed.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    pid_namespace, net_namespace = (Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "net"))
    return f"{hashlib.sha256(boot.encode()).hexdigest()[:16]}.{pid_namespace}.{net_namespace}"


def unavailable() -> str | None:
    """Why this process cannot use it, or None. Reads eight bytes of its own memory through the kernel."""
    if not sys.platform.startswith("linux"):
        return f"process_vm_readv is Linux only, and this is {sys.platform}"
    scope = _yama_scope()
    if scope >= 2 and os.geteuid() != 0:
        return f"{_YAMA} is {scope}: processes may not read each other's memory"
    source, target = np.arange(8, dtype=np.uint8), np.zeros(8, dtype=np.uint8)
    try:
        host_identity()
        read(os.getpid(), [(target.ctypes.data, 8)], [(source.ctypes.data, 8)])
    except (OSError, AttributeError) as error:
        return f"process_vm_readv is not permitted here: {error}"
    return None if bool((source == target).all()) else "process_vm_readv read something else than was there"


def allow_reading() -> None:
    """Let processes of the same user read this one. Changes something only under Yama's `ptrace_scope = 1`."""
    if _yama_scope() == 1:
        _libc().prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


def _yama_scope() -> int:
    try:
        return int(_YAMA.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0  # a kernel without Yama


def _pairs(target: Sequence[Piece], source: Sequence[Piece]) -> list[tuple[int, int, int]]:
    """`(target address, source address, length)` with both lists cut at the same places."""
    pairs = []
    there = iter(source)
    source_address, source_left = next(there, (0, 0))
    for start, size in target:
        address, left = start, size
        while left:
            while not source_left:
                source_address, source_left = next(there)
            length = min(left, source_left, MAX_BYTES_PER_CALL)
            pairs.append((address, source_address, length))
            address, left = address + length, left - length
            source_address, source_left = source_address + length, source_left - length
    return pairs


def read(pid: int, target: Sequence[Piece], source: Sequence[Piece], stop: Callable[[], bool] = lambda: False) -> bool:
    """Copy `source` of process `pid` into `target` of this one: two lists of pieces of the same total length.

    Blocks, without the interpreter lock; call it on a worker thread. Returns False if `stop` became true in between
    (asked every 16 MiB). Raises `PeerMemoryUnreadable`, after part of it may have been copied.
    """
    if sum(size for _, size in target) != sum(size for _, size in source):
        raise ValueError("target and source differ in length")
    table = np.array(_pairs(target, source), dtype=np.uint64).reshape(-1, 3)
    first = 0
    while first < len(table):
        if stop():
            return False
        within = np.cumsum(table[first : first + MAX_PIECES_PER_CALL, 2]) <= MAX_BYTES_PER_CALL
        batch = table[first : first + max(1, int(np.count_nonzero(within)))]
        first += _advance(batch, _read_once(pid, batch))
    return True


def _read_once(pid: int, batch: npt.NDArray[np.uint64]) -> int:
    local, remote = np.ascontiguousarray(batch[:, [0, 2]]), np.ascontiguousarray(batch[:, [1, 2]])
    while True:
        count = int(_libc().process_vm_readv(pid, local.ctypes.data, len(local), remote.ctypes.data, len(remote), 0))
        if count > 0:
            return count
        code = ctypes.get_errno() if count < 0 else errno.EFAULT
        if code != errno.EINTR:
            raise PeerMemoryUnreadable(code, f"cannot read the memory of process {pid}: {os.strerror(code)}")


def _advance(batch: npt.NDArray[np.uint64], count: int) -> int:
    """Move past `count` bytes; returns how many pieces are done, and shortens the one that is not, in place."""
    ends = np.cumsum(batch[:, 2])
    done = int(np.count_nonzero(ends <= count))
    if done < len(batch):
        rest = np.uint64(count - (int(ends[done - 1]) if done else 0))
        batch[done, 0] += rest
        batch[done, 1] += rest
        batch[done, 2] -= rest
    return done

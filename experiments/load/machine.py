"""What the machine did meanwhile: CPU seconds of a process tree, how busy the cores were, peak memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> tuple[int, int] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[11]) + int(fields[12])


def process_tree(root: int) -> list[int]:
    """`root` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(entry.name)) is not None:
            children.setdefault(stat[0], []).append(int(entry.name))
    tree, todo = [], [root]
    while todo:
        pid = todo.pop()
        tree.append(pid)
        todo.extend(children.get(pid, []))
    return tree


def cpu_seconds(root: int) -> float:
    """User and system CPU seconds of the living processes of a tree."""
    stats = (_stat(str(pid)) for pid in process_tree(root))
    return sum(stat[1] for stat in stats if stat is not None) / _TICKS_PER_S


def thread_seconds(root: int) -> dict[tuple[int, int], float]:
    """User and system CPU seconds of each living thread of a tree, by process and thread."""
    found = {}
    for pid in process_tree(root):
        try:
            threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
        except OSError:
            continue
        for thread in threads:
            if (stat := _stat(f"{pid}/task/{thread}")) is not None:
                found[pid, thread] = stat[1] / _TICKS_PER_S
    return found


def busy_seconds() -> float:
    """CPU seconds that all cores of the machine spent busy since boot."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


def peak_memory_bytes(root: int) -> int:
    """Sum of the peak resident sizes of the living processes of a tree."""
    total = 0
    for pid in process_tree(root):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return total


def describe_machine() -> str:
    """Model name, cores, vector units and versions, for the head of a table."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.machine())
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    units = " ".join(u for u in ("avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16") if u in flags)
    return f"{model}, {os.cpu_count()} cores ({units}), Linux {platform.release()}, Python {platform.python_version()}"

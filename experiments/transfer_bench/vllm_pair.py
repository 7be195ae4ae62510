"""vLLM's NixlConnector between two of its CPU servers, as it ships: what it reports of each transfer, and its CPU.

Both servers are whole ones, so a transfer is measured by vLLM's own metrics (`vllm:nixl_*`), not by a client. CPU is
that of a whole server while the taker's request runs: the giver's transfer and what it burns when idle, which has a
column of its own. The taker computes two tokens besides, whose CPU is measured by a request without a transfer and
taken off.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.engine_bench.server import free_port
from experiments.load.machine import cpu_seconds
from experiments.transfer_bench.bench import Bench
from experiments.transfer_bench.pair import EndError

READY_S = 240.0
REQUEST_S = 120.0
END_S = 20.0
PROMPT_TOKENS = 1800
SETTLE_S = 1.0
NEEDED_S = 90.0
HEAD = ("link", "how", "what", "GB/s", "CPU s/GB giver", "taker", "idle cores", "pieces")


@dataclass(frozen=True, slots=True)
class Vllm:
    """An installation: executable, model directory, what it wants preloaded."""

    executable: Path
    model: Path
    preload: str = ""


@dataclass(slots=True)
class Server:
    """One running server."""

    url: str
    process: subprocess.Popen[bytes]

    def complete(self, prompt: list[int], max_tokens: int, transfer: dict[str, Any] | None) -> dict[str, Any]:
        """One completion. `transfer`: vLLM's `kv_transfer_params`."""
        body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        if transfer is not None:
            body["kv_transfer_params"] = transfer
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def sums(self) -> dict[str, float]:
        """The sums and counts of its NIXL metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=REQUEST_S) as answer:
            return nixl_sums(answer.read().decode())

    def cpu_s(self) -> float:
        """CPU seconds of its processes."""
        return cpu_seconds(self.process.pid)


def nixl_sums(text: str) -> dict[str, float]:
    """`vllm:nixl_..._sum` and `_count` of a metrics page."""
    found = {}
    for line in text.splitlines():
        name = line.split("{")[0]
        if name.startswith("vllm:nixl") and name.endswith(("_sum", "_count")):
            found[name.removeprefix("vllm:nixl_")] = float(line.rsplit(" ", 1)[1])
    return found


@contextmanager
def _server(vllm: Vllm, core: int, side_port: int, log: Path) -> Iterator[Server]:
    port = free_port()
    env = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
        "VLLM_KV_CACHE_LAYOUT": "HND",
        "VLLM_NO_USAGE_STATS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "UCX_TLS": "tcp",
        "UCX_RNDV_SCHEME": "put_zcopy",
    }
    if vllm.preload:
        env["LD_PRELOAD"] = vllm.preload
    connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    argv = [
        str(vllm.executable), "serve", str(vllm.model), "--served-model-name", "m", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "4",
        "--enforce-eager", "--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(connector),
    ]  # fmt: skip
    with log.open("w") as text:
        process = subprocess.Popen(argv, env=env, stdout=text, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(server: Server, deadline: float) -> None:
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise EndError("a server ended before it was ready, see its log")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=2.0):
                return
        except OSError:
            time.sleep(0.3)
    raise EndError(f"a server was not ready within {READY_S:g} s")


def vllm_connector(bench: Bench, vllm: Vllm, repeats: int = 3) -> None:
    """The rows of vLLM's connector, over loopback TCP."""
    if not bench.fits(NEEDED_S, "vLLM"):
        return
    try:
        with ExitStack() as stack:
            servers = [
                stack.enter_context(_server(vllm, core, free_port(), bench.logs / f"vllm{core}.log"))
                for core in range(2)
            ]
            deadline = time.monotonic() + min(READY_S, bench.left_s())
            for server in servers:
                _until_ready(server, deadline)
            _measure(bench, servers[0], servers[1], repeats)
    except (EndError, OSError, KeyError) as error:
        bench.report.note(f"vLLM: not measured, {error!r}")


def _measure(bench: Bench, giver: Server, taker: Server, repeats: int) -> None:
    _hand_over(giver, taker, 0)
    time.sleep(2 * SETTLE_S)
    before = sum(server.cpu_s() for server in (giver, taker))
    time.sleep(SETTLE_S)
    idle = (sum(server.cpu_s() for server in (giver, taker)) - before) / SETTLE_S
    start = taker.cpu_s()
    taker.complete([1, 2, 3], 2, None)
    plain_s = taker.cpu_s() - start
    rates, giver_cpu, taker_cpu, pieces = [], [], [], []
    for number in range(1, repeats + 1):
        sums, giver_s, taker_s = _hand_over(giver, taker, number)
        num_bytes = sums["bytes_transferred_sum"]
        rates.append(num_bytes / sums["xfer_time_seconds_sum"])
        giver_cpu.append(giver_s / num_bytes * 1e9)
        taker_cpu.append((taker_s - plain_s) / num_bytes * 1e9)
        pieces.append(sums["num_descriptors_sum"])
    cells = [
        "loopback", "vLLM NixlConnector", f"{num_bytes / 2**20:.0f} MiB", f"{statistics.median(rates) / 1e9:.3f}",
        f"{statistics.median(giver_cpu):.2f}", f"{statistics.median(taker_cpu):.2f}", f"{idle:.2f}",
        f"{statistics.median(pieces):.0f}",
    ]  # fmt: skip
    bench.report.line("vLLM's connector, by its own metrics (whole servers)", HEAD, cells, {"rates": rates})


def _hand_over(giver: Server, taker: Server, number: int) -> tuple[dict[str, float], float, float]:
    """One prompt from one server to the other: the metrics it added, and CPU seconds of either."""
    prompt = [1000 + (number * 7919 + i * 31) % 20000 for i in range(PROMPT_TOKENS)]
    wanted = {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
        "remote_host": None, "remote_port": None,
    }  # fmt: skip
    where = giver.complete(prompt, 1, wanted)["kv_transfer_params"]
    time.sleep(SETTLE_S)
    before, giver_s, taker_s = taker.sums(), giver.cpu_s(), taker.cpu_s()
    taker.complete(prompt, 2, where)
    giver_s, taker_s = giver.cpu_s() - giver_s, taker.cpu_s() - taker_s
    deadline = time.monotonic() + REQUEST_S
    while True:  # the metrics are counted with the next step that is logged
        after = taker.sums()
        added = {name: value - before.get(name, 0.0) for name, value in after.items()}
        if added.get("xfer_time_seconds_count", 0.0) >= 1.0:
            return added, giver_s, taker_s
        if time.monotonic() > deadline:
            raise EndError("the taker's metrics show no transfer: it computed the prompt itself")
        time.sleep(0.2)

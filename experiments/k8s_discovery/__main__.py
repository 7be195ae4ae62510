"""`python -m experiments.k8s_discovery`: 500 endpoints on the fake API server; writes `RESULT.md` beside this file.

1. The discovery alone: memory and time of importing it, time to the first full view, then calls per minute while one
   endpoint a second changes its readiness.
2. How soon a running router has one more replica, also after the API server forgot or was away.
3. A whole router: time from its start until all replicas are joined, resident memory and CPU with few and with all.
4. What importing the official client takes of that, and the HTTP library under it alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from experiments.engine_bench.server import free_port
from experiments.k8s_discovery.changes import AWAY_S, measure_changes
from experiments.k8s_discovery.processes import (
    PER_SLICE,
    ROOT,
    SLICES,
    await_joined,
    first_line,
    host,
    publish,
    router_words,
    running,
    write_kubeconfig,
)
from experiments.load.command_line import end
from experiments.load.machine import cpu_seconds
from experiments.load.origin import origin

IMPORT = (
    "import time, json; b = time.process_time(); import {}; c = time.process_time() - b; r = [int(l.split()[1]) for l "
    "in open('/proc/self/status') if l.startswith('VmRSS')][0]; print(json.dumps({{'cpu_s': c, 'mb': r * 1024 / 1e6}}))"
)


def importing(module: str) -> str:
    """What it takes, in words."""
    words = [sys.executable, "-c", IMPORT.format(module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    return f"{found['cpu_s']:.2f} s of CPU, {found['mb']:.0f} MB resident"


def change(url: str, stop: threading.Event) -> None:
    """Once a second one endpoint of one slice changes its readiness."""
    number = 0
    with httpx.Client(base_url=url, headers={"Content-Type": "application/merge-patch+json"}) as http:
        while not stop.wait(1.0):
            name = f"{SLICES}/pool-{number % 5 * PER_SLICE}"
            endpoints = http.get(name).json()["endpoints"]
            endpoints[number % len(endpoints)]["conditions"]["ready"] ^= True
            http.patch(name, content=json.dumps({"endpoints": endpoints})).raise_for_status()
            number += 1


def resident_mb(pid: int) -> float:
    """Now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def measure_room(url: str, kubeconfig: Path, endpoints: int, seconds: float) -> dict[str, Any]:
    """The discovery in a process of its own."""
    stop = threading.Event()
    changing = threading.Thread(target=change, args=(url, stop))
    changing.start()
    words = [sys.executable, "-m", "experiments.k8s_discovery.room", str(kubeconfig), str(endpoints - 5), str(seconds)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=seconds + 120)
    stop.set()
    changing.join()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_router(
    url: str, kubeconfig: Path, model: str, endpoints: int, seconds: float, folder: Path
) -> dict[str, float]:
    """A router from its start until all are joined, and then for a while."""
    port = free_port()
    began_s = time.monotonic()
    with running(*router_words(model, port, kubeconfig), log=folder / "router.log") as router:
        await_joined(port, endpoints)
        joined_s, cpu_s = time.monotonic() - began_s, cpu_seconds(router.pid)
        before = httpx.get(f"{url}/_fake/requests").json()["count"]
        time.sleep(seconds)
        calls = httpx.get(f"{url}/_fake/requests").json()["count"] - before
        return {
            "joined_s": joined_s,
            "start_cpu_s": cpu_s,
            "cpu_share": (cpu_seconds(router.pid) - cpu_s) / seconds,
            "resident_mb": resident_mb(router.pid),
            "calls_per_minute": calls * 60.0 / seconds,
        }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m experiments.k8s_discovery", description=__doc__)
    parser.add_argument("--endpoints", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long calls are counted (default 60)")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer the router loads")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time; writes nothing")
    words = parser.parse_args()
    seconds = words.seconds / 10 if words.quick else words.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running("-m", "tests.k8s.apiserver", log=folder / "api.log") as server:
            url = first_line(server).split()[1]
            kubeconfig = write_kubeconfig(folder, url)
            publish(url, 0, 5)
            few, room, many = _measure(words, url, kubeconfig, seconds, folder)
        changes = measure_changes(words.model, folder)
    text = report(words, seconds, few, room, many, changes)
    print(text)
    if not words.quick:
        (Path(__file__).parent / "RESULT.md").write_text(text)


def _measure(
    words: argparse.Namespace, url: str, kubeconfig: Path, seconds: float, folder: Path
) -> tuple[dict[str, float], dict[str, Any], dict[str, float]]:
    addresses = [host(number) for number in range(words.endpoints)]
    stand_in = ("-m", "experiments.k8s_discovery.replicas", words.model)
    with running(*stand_in, *addresses[:5], log=folder / "few.log") as replicas:
        first_line(replicas)
        few = measure_router(url, kubeconfig, words.model, 5, seconds, folder)
    httpx.delete(url + SLICES).raise_for_status()
    publish(url, 0, words.endpoints)
    with running(*stand_in, *addresses, log=folder / "many.log") as replicas:
        first_line(replicas)
        many = measure_router(url, kubeconfig, words.model, words.endpoints, seconds, folder)
    return few, measure_room(url, kubeconfig, words.endpoints, seconds), many


def report(
    words: argparse.Namespace,
    seconds: float,
    few: dict[str, float],
    room: dict[str, Any],
    many: dict[str, float],
    changes: dict[str, float],
) -> str:
    """Markdown."""
    n, slices = words.endpoints, -(-words.endpoints // PER_SLICE)
    lines = [
        f"# Discovery in Kubernetes with {n} endpoints",
        "",
        origin("python -m experiments.k8s_discovery"),
        "",
        f"The fake API server of `tests/k8s/apiserver` holds {n} endpoints in {slices} EndpointSlices. One process",
        "answers as all replicas (two heartbeats a second each). All over loopback, on a machine that did other work.",
        "",
        "## A whole router",
        "",
        f"| | 5 replicas | {n} replicas |",
        "|---|---:|---:|",
        f"| from its start until all are joined, s | {few['joined_s']:.2f} | {many['joined_s']:.2f} |",
        f"| CPU until then, s | {few['start_cpu_s']:.2f} | {many['start_cpu_s']:.2f} |",
        f"| resident, MB | {few['resident_mb']:.0f} | {many['resident_mb']:.0f} |",
        f"| CPU afterwards, share of a core | {few['cpu_share']:.1%} | {many['cpu_share']:.1%} |",
        f"| API calls per minute | {few['calls_per_minute']:.1f} | {many['calls_per_minute']:.1f} |",
        "",
        "## Until one more replica is joined",
        "",
        "| its endpoint came | s |",
        "|---|---:|",
        f"| while the router watched | {changes['one_more_s']:.2f} |",
        f"| right after the API server forgot its history (410) | {changes['forgotten_s']:.2f} |",
        f"| right after it came back from {AWAY_S:g} s away | {changes['back_s']:.2f} |",
        "",
        f"## The discovery alone, while one endpoint a second changes ({seconds:g} s)",
        "",
        "| | |",
        "|---|---:|",
        f"| first full view after, s | {room['full_view_s']:.3f} |",
        f"| resident after importing / at the end / peak, MB | {room['imported_mb']:.0f} / {room['resident_mb']:.0f} / "
        f"{room['peak_mb']:.0f} |",
        f"| CPU of importing everything, s | {room['imported_cpu_s']:.2f} |",
        f"| API calls per minute | {room['calls_per_minute']:.1f} |",
        f"| events per minute | {room['events_per_minute']:.0f} |",
        f"| CPU per minute, s | {room['cpu_s_per_minute']:.2f} |",
        f"| of which importing `kubernetes.aio` alone | {importing('kubernetes.aio')} |",
        f"| for comparison, importing `aiohttp` alone | {importing('aiohttp')} |",
        "",
        "Calls are watches that the server ends after 32 to 48 s, and one list in ten minutes: their number does not",
        "depend on that of the endpoints or their changes. What a router with hundreds of replicas costs is its own",
        "connections and their heartbeats, not discovery. Not measured: a real API server under other load.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    end("k8s_discovery", main)

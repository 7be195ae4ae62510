"""How soon a router that runs has what changed in the cluster: one more replica, also after the API server was away."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx

from experiments.engine_bench.server import free_port
from experiments.k8s_discovery.processes import (
    SLICES,
    await_joined,
    endpoint,
    first_line,
    host,
    publish,
    router_words,
    running,
    write_kubeconfig,
)

AWAY_S = 5.0
FEW = 5


def measure_changes(model: str, folder: Path) -> dict[str, float]:
    """Seconds from the change in the API server (or from its return) until the router has joined the replica."""
    api_port, port = free_port(), free_port()
    words = ("-m", "tests.k8s.apiserver", "--port", str(api_port), "--journal", str(folder / "journal"))
    url = f"http://127.0.0.1:{api_port}"
    addresses = [host(number) for number in range(FEW + 3)]
    stand_in = ("-m", "experiments.k8s_discovery.replicas", model, *addresses)
    found: dict[str, float] = {}
    with running(*stand_in, log=folder / "replicas.log") as replicas:
        first_line(replicas)
        with running(*words, log=folder / "api.log") as server:
            first_line(server)
            publish(url, 0, FEW)
            router = running(*router_words(model, port, write_kubeconfig(folder, url)), log=folder / "router.log")
            with router:
                await_joined(port, FEW)
                found["one_more_s"] = add_and_wait(url, port, FEW + 1)
                httpx.post(f"{url}/_fake/compact").raise_for_status()
                found["forgotten_s"] = add_and_wait(url, port, FEW + 2)
                server.kill()
                server.wait(10)
                time.sleep(AWAY_S)
                with running(*words, log=folder / "api.log") as again:
                    first_line(again)
                    found["back_s"] = add_and_wait(url, port, FEW + 3)
    return found


def add_and_wait(url: str, port: int, size: int) -> float:
    """Make it so many endpoints; how long until so many are joined."""
    body = json.dumps({"endpoints": [endpoint(number) for number in range(size)]})
    kind = {"Content-Type": "application/merge-patch+json"}
    began_s = time.monotonic()
    httpx.patch(f"{url}{SLICES}/pool-0", content=body, headers=kind).raise_for_status()
    await_joined(port, size)
    return time.monotonic() - began_s

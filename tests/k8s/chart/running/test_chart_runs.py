"""What the chart renders works: its pods' processes find each other and answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

API_KEY = "an-api-key-of-the-test"
BODY = {"model": "smollm2-135m", "prompt": "one two three", "max_tokens": 8, "temperature": 0}


def fleet(release: Any) -> dict[str, Any]:
    found = httpx.get(f"{release.url}/fleet", timeout=10).json()["replicas"]
    return {one["replica_id"]: one for one in found}


@pytest.mark.system
@pytest.mark.slow
def test_a_release_answers_and_ends(run_release: Any) -> None:
    release = run_release(secrets={"apiKeys": [API_KEY]})
    # 1. The router found every pod by its Service, with the rights of the chart's Role, and leads by its Lease.
    found = fleet(release)
    assert {name: one["role"] for name, one in found.items()} == {
        "chat-alternating-0": "alternating",
        "chat-alternating-1": "alternating",
        "chat-prefill-0": "prefill",
        "chat-decode-0": "decode",
    }
    assert release.lease()["spec"]["holderIdentity"].startswith("chat-router-")
    # 2. Who has a key is answered, in every layout; who has none is not.
    headers = {"authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=release.url, timeout=30) as client:
        assert client.post("/v1/completions", json=BODY).status_code == 401
        for layout in ("phased", "disaggregated"):
            wanted = {"layout": layout, "on_unavailable": "fail"}
            answer = client.post("/v1/completions", json=BODY | {"phaseserve": wanted}, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-phaseserve-layout"] == layout
        # 3. Metrics are told as the ServiceMonitor asks for them.
        assert "phaseserve_requests_total" in client.get("/metrics").text
    # 4. `helm test` asks as it should.
    (pod,) = [one["spec"]["containers"][0] for one in release.documents if one["kind"] == "Pod"]
    assert {one["name"] for one in pod["env"]} == {"HOME", "URL", "API_KEYS"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "URL": release.url, "API_KEYS": f"{API_KEY},another-key-of-the-test"}
    asked = subprocess.run(pod["command"], check=False, env=environment, capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    assert "output tokens" in asked.stdout
    # 5. SIGTERM ends each by itself, with 0.
    assert [pod.terminate() for pod in release.pods] == [0] * len(release.pods)

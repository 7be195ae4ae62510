"""Secrets of router and replicas: the control plane's, the API keys, the certificate."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.control_secret import CONTROL_SECRET_VARIABLE

pytestmark = pytest.mark.system

FAKE = {"fake": {"vocab_size": 400, "max_context": 2048, "num_blocks": 512, "delays": False}}
SECRET = "the fleet's own, and long"
KEYS = ("key-of-the-first-team", "key-of-the-second-team")
ASK = {"model": "tiny", "prompt": "hi", "max_tokens": 3, "ignore_eos": True}


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def make_certificate(cert: Path, key: Path) -> None:
    words = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {key} -out {cert}"
    words += " -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(words.split(), check=True, capture_output=True)


async def test_the_same_control_secret_lets_both_speak(
    start_replica: Any, start_router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTROL_SECRET_VARIABLE, SECRET)
    replica = await start_replica(**FAKE)
    router = await start_router(replica)
    answer = await router.http.post("/v1/completions", json=ASK)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert SECRET not in command_line(replica.pid)


@pytest.mark.parametrize(
    ("of_replica", "of_router"),
    [
        pytest.param(SECRET, "", marks=pytest.mark.slow),
        pytest.param("", SECRET, marks=pytest.mark.slow),
        (SECRET, "another, and long enough"),
    ],
    ids=["only-replica", "only-router", "different"],
)
async def test_another_control_secret_lets_nobody_in_and_says_why(
    start_replica: Any, start_router: Any, monkeypatch: pytest.MonkeyPatch, of_replica: str, of_router: str
) -> None:
    monkeypatch.setenv(CONTROL_SECRET_VARIABLE, of_replica)
    replica = await start_replica(**FAKE)
    monkeypatch.setenv(CONTROL_SECRET_VARIABLE, of_router)
    router = await start_router(replica, ready=False)
    async with asyncio.timeout(30):
        while True:
            try:
                answer = await router.http.get("/health/ready")
            except httpx.TransportError:  # it does not listen yet
                await asyncio.sleep(0.1)
                continue
            assert answer.status_code == 503
            if CONTROL_SECRET_VARIABLE in answer.json()["reason"]:
                return
            await asyncio.sleep(0.1)


async def test_with_api_keys_only_their_holders_may_ask(
    start_replica: Any, start_router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHASESERVE_API_KEYS", ", ".join(KEYS))
    router = await start_router(await start_replica(**FAKE))
    http = router.http
    for given in ({}, {"authorization": "Bearer nobody-knows-this-key"}, {"authorization": f"Basic {KEYS[0]}"}):
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/tiny"),
            ("POST", "/v1/requests/cmpl-1/cancel"),
            ("DELETE", "/v1/requests/cmpl-1"),
        ):
            refused = await http.request(method, path, json=ASK, headers=given)
            assert refused.status_code == 401, (method, path)
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
    for key in KEYS:
        answer = await http.post("/v1/completions", json=ASK, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200
    assert (await http.get("/health/ready")).status_code == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl program to make a certificate with")
async def test_with_a_certificate_the_port_speaks_https(start_replica: Any, start_router: Any, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    settings = (f'router.tls_cert="{cert}"', f'router.tls_key="{key}"')
    router = await start_router(await start_replica(**FAKE), settings=settings, ready=False)
    trusted = ssl.create_default_context(cafile=str(cert))
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{router.port}", verify=trusted, timeout=20) as https:
        async with asyncio.timeout(40):
            while True:
                try:
                    ready = await https.get("/health/ready")
                except httpx.TransportError:  # it does not listen yet
                    await asyncio.sleep(0.1)
                    continue
                if ready.status_code == 200:
                    break
                await asyncio.sleep(0.1)
        async with https.stream("POST", "/v1/completions", json={**ASK, "stream": True}) as answer:
            assert answer.status_code == 200
            assert (await answer.aread()).endswith(b"data: [DONE]\n\n")


async def test_a_certificate_that_cannot_be_read_is_refused_before_the_port_opens(
    start_router: Any, tmp_path: Path
) -> None:
    settings = (f'router.tls_cert="{tmp_path}/none.pem"', f'router.tls_key="{tmp_path}/none.key"')
    router = await start_router(settings=settings, ready=False)
    assert await router.exit_code() == 2
    assert "none.pem" in router.log_path.read_text()

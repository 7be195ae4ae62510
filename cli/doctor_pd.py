"""`phaseserve doctor --pd`: does KV really go from a prefill replica to a decode replica, and is it worth anything.

The same prompts are answered by one replica alone and by one prefill and one decode replica. It is a proof only if the
text is the same, the decode replica computed no prompt, and exactly the prompts' KV crossed the link.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cli.doctor_findings import Findings
from cli.doctor_server import free_port, wait_ready
from cli.http_client import ServerError, get_json, get_text, post_json, sample_of
from cli.overlay import build
from cli.settings import Settings
from cli.supervisor import Supervisor, own_command
from contracts.kv import KVLayout
from engine.checkpoint.resolve import resolve_model
from engine.config import EngineConfig

PROMPT_TOKENS = (40, 256, 700)
OUTPUT_TOKENS = 24
STOP_S = 60.0
MEASURED_S = 10.0
TIMEOUT_S = 120.0
PREFILL, DECODE = "r0", "r1"
WISH = {"layout": "disaggregated", "on_unavailable": "fail"}


@dataclass(slots=True)
class Deployment:
    """One `phaseserve up` of the doctor's. `lines` is its log so far."""

    url: str
    lines: list[str]

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics. Raises `ServerError` when it is missing."""
        return sample_of(get_text(self.url, "/metrics"), name, labels)


@dataclass(slots=True)
class Moved:
    """Counters of both replicas that only a hand-off moves."""

    prompt_on_decode: float
    prompt_on_prefill: float
    bytes_out: float
    bytes_in: float

    @classmethod
    def read(cls, server: Deployment) -> Moved:
        """Their values now."""
        return cls(
            server.metric("phaseserve_replica_prompt_tokens_computed_total", replica=DECODE),
            server.metric("phaseserve_replica_prompt_tokens_computed_total", replica=PREFILL),
            server.metric("phaseserve_replica_kv_bytes_out_total", replica=PREFILL),
            server.metric("phaseserve_replica_kv_bytes_in_total", replica=DECODE),
        )

    def since(self, before: Moved) -> Moved:
        """What was added."""
        return Moved(
            self.prompt_on_decode - before.prompt_on_decode,
            self.prompt_on_prefill - before.prompt_on_prefill,
            self.bytes_out - before.bytes_out,
            self.bytes_in - before.bytes_in,
        )


def prompts(vocab_size: int, max_context: int) -> list[list[int]]:
    """Prompts that share no prefix, as token ids."""
    room = max_context - OUTPUT_TOKENS
    lengths = sorted({min(length, room) for length in PROMPT_TOKENS})
    return [[(1 + length * 7907 + i * 15485863) % vocab_size for i in range(length)] for length in lengths]


def wire_bytes(layout: KVLayout, asked: list[list[int]]) -> int:
    """What has to cross for these prompts: whole blocks, of every layer."""
    block_bytes = layout.num_layers * layout.block_bytes_per_layer
    return sum(layout.blocks_for(len(prompt)) * block_bytes for prompt in asked)


async def check_hand_over(findings: Findings, words: list[str], settings: Settings) -> None:
    """Both deployments, one after the other, and the verdict. `words` go to `phaseserve up`."""
    spec = resolve_model(settings.model).spec
    engine = build(EngineConfig, [settings.table("engine")])
    layout = KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=engine.block_size,
        dtype="float32" if engine.dtype == "auto" else engine.dtype,  # KV can be sent from a CPU only, so far
    )
    asked = prompts(spec.vocab_size, engine.max_context or spec.max_context)
    try:
        async with _up(findings, "colocated", "--mixed", "1", *words) as server:
            want = [await asyncio.to_thread(_answer, server.url, prompt, {}) for prompt in asked]
        async with _up(findings, "1P1D", "--prefill", "1", "--decode", "1", *words) as server:
            await asyncio.to_thread(_judge, findings, server, asked, want, wire_bytes(layout, asked))
    except ServerError as error:
        findings.fail("hand-off", str(error))


@asynccontextmanager
async def _up(findings: Findings, name: str, *words: str) -> AsyncIterator[Deployment]:
    lines: list[str] = []
    supervisor = Supervisor(lines.append)
    port = free_port()
    server = Deployment(f"http://127.0.0.1:{port}", lines)
    child = await supervisor.start(name, own_command("up", "--port", str(port), *words))
    try:
        if not await wait_ready(child, server.url):
            raise ServerError(f"{name} did not become ready; its last lines:\n" + "\n".join(lines[-12:]))
        findings.ok(name, "ready")
        yield server
    finally:
        await supervisor.stop([name], STOP_S)


def _answer(url: str, prompt: list[int], wish: dict[str, str]) -> str:
    model = get_json(url, "/v1/models")["data"][0]["id"]
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True} | ({"phaseserve": wish} if wish else {})
    text: str = post_json(url, "/v1/completions", body, timeout_s=TIMEOUT_S)["choices"][0]["text"]
    return text


def _judge(findings: Findings, server: Deployment, asked: list[list[int]], want: list[str], num_bytes: int) -> None:
    before = Moved.read(server)
    got = [_answer(server.url, prompt, WISH) for prompt in asked]
    moved = _settled(server, before, num_bytes)
    prompt_tokens = sum(map(len, asked))
    _say(findings, "output", got == want, f"{len(asked)} prompts, the same text as colocated", f"{got} is not {want}")
    _say(
        findings,
        "bytes",
        moved.bytes_in == moved.bytes_out == num_bytes,
        f"{num_bytes} crossed, the KV of {prompt_tokens} prompt tokens",
        f"{num_bytes} should have crossed; {moved.bytes_out:.0f} were sent, {moved.bytes_in:.0f} arrived",
    )
    _say(
        findings,
        "compute",
        moved.prompt_on_decode == 0 and moved.prompt_on_prefill == prompt_tokens,
        f"all {prompt_tokens} prompt tokens on the prefill replica, none on the decode replica",
        f"{moved.prompt_on_prefill:.0f} of {prompt_tokens} prompt tokens on the prefill replica,"
        f" {moved.prompt_on_decode:.0f} on the decode replica",
    )
    _show_links(findings, server, len(asked))


def _settled(server: Deployment, before: Moved, num_bytes: int) -> Moved:
    """The counters once the last heartbeat is in: they lag behind the answers."""
    deadline = time.monotonic() + 5.0
    while (moved := Moved.read(server).since(before)).bytes_in < num_bytes and time.monotonic() < deadline:
        time.sleep(0.1)
    return moved


def _measured_rate(server: Deployment) -> float:
    """Bytes per second of the link, once it was measured (an idle link soon is); 0 when it was not in time."""
    deadline = time.monotonic() + MEASURED_S
    while True:
        rate = server.metric("phaseserve_link_bytes_per_second", replica=PREFILL, peer=DECODE)
        if rate > 0 or time.monotonic() > deadline:
            return rate
        time.sleep(0.1)


def _show_links(findings: Findings, server: Deployment, num_asked: int) -> None:
    rate = _measured_rate(server)
    if rate > 0:
        findings.ok(f"link {PREFILL} to {DECODE}", f"{rate / 1e9:.3f} GB/s measured")
    else:
        findings.note(f"link {PREFILL} to {DECODE}", "its rate was not measured yet")
    for line in server.lines:
        if "link to" in line or "moves KV" in line:
            findings.ok("transport", line.split("| ")[-1].removeprefix("INFO "))
    decisions = get_json(server.url, "/decisions")["decisions"][:num_asked]
    reports = [decision["outcome"]["handoff"] for decision in decisions if decision["outcome"]]
    if not reports or not all(reports):
        findings.fail("hidden", "no report of a hand-off among the latest decisions")
        return
    transfer_s = sum(report["transfer_s"] for report in reports)
    exposed_s = sum(min(report["exposed_s"], report["transfer_s"]) for report in reports)
    hidden = 1.0 - exposed_s / transfer_s if transfer_s > 0 else 1.0
    findings.ok("hidden", f"{hidden:.0%} of {transfer_s * 1e3:.1f} ms of transfer behind compute")


def _say(findings: Findings, what: str, holds: bool, right: str, wrong: str) -> None:
    (findings.ok if holds else findings.fail)(what, right if holds else wrong)

"""Sends requests at given times and records when each token arrived. One process, one connection a request."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(frozen=True, slots=True)
class Job:
    """One request: when it is sent (seconds from the start), what it says (text, or token ids), how many tokens it asks
    for. `request_id`, if any, is what the server may call it; `key`, if any, is sent as its API key."""

    at_s: float
    prompt: str | list[int]
    max_tokens: int
    request_id: str = ""
    key: str = ""


@dataclass(slots=True)
class Sample:
    """What one request saw. Times in seconds from its own sending; `error` is set instead of figures."""

    sent_at_s: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    token_times_s: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """First content minus sending."""
        return self.token_times_s[0]

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first (0 for one token)."""
        return (self.token_times_s[-1] - self.token_times_s[0]) / max(1, self.output_tokens - 1)

    @property
    def max_gap_s(self) -> float:
        """The longest wait between two chunks of content."""
        return max((b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)), default=0.0)


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load. `extra` is merged into every body; `drop` names fields that the server refuses."""

    url: str
    model: str
    extra: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()


async def send(session: aiohttp.ClientSession, target: Target, job: Job, began: float) -> Sample:
    """One streamed completion of exactly `job.max_tokens` tokens."""
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    for name in target.drop:
        body.pop(name, None)
    headers = {"X-Request-Id": job.request_id} if job.request_id else {}
    if job.key:
        headers["Authorization"] = f"Bearer {job.key}"
    start = time.perf_counter()
    sample = Sample(sent_at_s=start - began)
    try:
        async with session.post(f"{target.url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                sample.error = f"{response.status} {(await response.text())[:200]}"
                return sample
            await _read_stream(response, sample, start)
    except (aiohttp.ClientError, TimeoutError) as error:
        sample.error = f"{type(error).__name__}: {error}"[:200]
    if sample.error is None and not sample.token_times_s:
        sample.error = "no tokens"
    return sample


async def _read_stream(response: aiohttp.ClientResponse, sample: Sample, start: float) -> None:
    async for raw in response.content:
        if not raw.startswith(b"data:"):
            continue
        data = raw[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            sample.error = str(event["error"])[:200]
            return
        if event.get("usage"):
            sample.prompt_tokens = event["usage"]["prompt_tokens"]
            sample.output_tokens = event["usage"]["completion_tokens"]
        choices = event.get("choices") or []
        if choices and choices[0].get("text"):
            sample.token_times_s.append(time.perf_counter() - start)


async def run_load(target: Target, jobs: list[Job], *, timeout_s: float = 900.0) -> tuple[list[Sample], float]:
    """All jobs at their times. Returns the samples in job order and the seconds the whole took."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()

        async def at_its_time(job: Job) -> Sample:
            await asyncio.sleep(max(0.0, began + job.at_s - time.perf_counter()))
            return await send(session, target, job, began)

        samples = await asyncio.gather(*(at_its_time(job) for job in jobs))
        return list(samples), time.perf_counter() - began

"""One client of a fleet under fault: what it asked, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec


@dataclass(slots=True, eq=False)
class Ask:
    """One client: what it asked, and what came of it. `end` is "length", an error's code, "left" or "cut off"."""

    prompt: tuple[int, ...]
    max_tokens: int
    wish: dict[str, str]
    deadline_s: float
    began_s: float = field(default_factory=time.monotonic)
    text: str = ""
    num_pieces: int = 0
    status: int = 0
    end: str = ""
    took_s: float = 0.0
    layout: str = ""
    task: asyncio.Task[None] | None = None

    async def run(self, url: str) -> None:
        """Ask, and read to the end."""
        body = {"model": "tiny", "prompt": list(self.prompt), "max_tokens": self.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "phaseserve": self.wish}
        try:
            async with (
                httpx.AsyncClient(timeout=self.deadline_s + 10, verify=False) as http,
                http.stream("POST", f"{url}/v1/completions", json=body) as answer,
            ):
                self.status = answer.status_code
                self.layout = answer.headers.get("x-phaseserve-layout", "")
                if answer.status_code != 200:
                    self.end = msgspec.json.decode(await answer.aread())["error"]["code"]
                rest = b""
                async for piece in answer.aiter_bytes():  # aiter_lines also ends lines at U+2028, which text may hold
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._take(line)
        except asyncio.CancelledError:
            self.end = "left"
        except httpx.TransportError:
            self.end = self.end or "cut off"
        self.took_s = time.monotonic() - self.began_s

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data: {"):
            return
        event = msgspec.json.decode(line.removeprefix(b"data: "))
        if "error" in event:
            self.end = event["error"]["code"]
            return
        for choice in event["choices"]:
            self.text += choice["text"]
            self.num_pieces += bool(choice["text"])
            self.end = choice["finish_reason"] or self.end

    async def leave(self) -> None:
        """The client goes away."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    def stands_at(self, step: str, views: Mapping[str, Any]) -> bool:
        """Whether it is there, when it is the last of those that `Pools.stand_at` asks."""
        if not {"p", "d"} <= set(views):
            return False
        p, d = views["p"], views["d"]
        if step == "reserved":
            return bool(d["receiving"] == 2 and p["waiting"] == 1)
        if step == "sending":
            return bool(d["receiving"] == 1 and p["running"] == 1 and not p["sending"])
        if step == "committed":
            return bool(d["receiving"] == 1 and p["sending"] == 1)
        return bool(self.num_pieces >= 5 and d["running"] == 1 and not d["receiving"])

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

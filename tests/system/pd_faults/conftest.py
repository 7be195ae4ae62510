"""Prefill and decode replicas that are hurt on purpose, clients that check every answer, and what must hold afterwards.

`Pools.check` runs after every test: each request ended in time with the right text or a named error, every block of
every survivor is free, the fleet serves again once it is whole, and no survivor keeps a file descriptor or a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from contracts.batch import SequenceStart
from contracts.phase import Role
from contracts.request import SamplingParams
from engine.fake import FakeEngine, fake_layout, fake_spec
from experiments.network.fleet import LanFleet
from tests.system.pd_faults.asking import Ask
from tests.system.pd_faults.looking import BUSY, is_idle, opened, usage

VOCAB = 400
CONTEXT = 2048
QUICK = {"a0": 0.002, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
SETTINGS: dict[str, Any] = {
    "kind": "fake",
    "fake": {"cost": QUICK, "vocab_size": VOCAB, "max_context": CONTEXT, "num_blocks": 512},
    "core": {"max_chunk": 128, "kv_lease_max_s": 6.0},
    "transfer": {"transport": "tcp", "silence_s": 3.0},
    "loop": {"router_silence_s": 3.0},
}
ROUTER = ("router.silence_s=2.5", "router.heartbeat_s=0.25")
SLOW_STEPS = {"cost": {**QUICK, "a0": 0.01, "a1": 1e-3}}
"""800 tokens take about 0.9 s, a decode step 11 ms."""
SLOW_LINK = {"faults": {"bytes_per_s": 250_000}}
"""800 tokens, 410 kB, take 1.6 s."""
NAMED = {"unavailable", "kv_handoff_failed", "overloaded", "deadline_exceeded", "engine_failure"}
DEADLINE_S = 60.0
SETTLED_S = 45.0


class Pools:
    """A fleet under fault. `asks` are all requests since the last `settle`."""

    def __init__(self, fleet: LanFleet, model: Path) -> None:
        self.fleet = fleet
        self.asks: list[Ask] = []
        self.router_died = False
        self.policy = "recompute"
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        spec = fake_spec(vocab_size=VOCAB, max_context=CONTEXT)
        self._oracle = FakeEngine(spec, fake_layout(spec), 1)
        self._salts = itertools.count(1)
        self._used: dict[int, tuple[int, int]] = {}
        self._old_logs: list[str] = []

    # --- clients

    def prompt(self, length: int) -> tuple[int, ...]:
        """One that was never used before; never with the last token, which `failing_token` may name."""
        choose = random.Random(next(self._salts) * 1_000_003 + length)
        return tuple(choose.randrange(3, VOCAB - 1) for _ in range(length))

    def ask(
        self,
        prompt: int | tuple[int, ...],
        max_tokens: int = 100,
        *,
        layout: str = "disaggregated",
        on_unavailable: str = "colocate",
        deadline_s: float = DEADLINE_S,
    ) -> Ask:
        """Start asking."""
        tokens = self.prompt(prompt) if isinstance(prompt, int) else prompt
        asked = Ask(tokens, max_tokens, {"layout": layout, "on_unavailable": on_unavailable}, deadline_s)
        asked.task = asyncio.create_task(asked.run(self.fleet.url))
        self.asks.append(asked)
        return asked

    async def answers(self, *asks: Ask) -> list[str]:
        """Their ends, within their deadlines."""
        for asked in asks:
            assert asked.task is not None
            left_s = asked.began_s + asked.deadline_s - time.monotonic()
            done, _ = await asyncio.wait([asked.task], timeout=max(0.1, left_s))
            assert done, f"{len(asked.prompt)} tokens after {asked.deadline_s} s: no end; {self.story()}"
        return [asked.end for asked in asks]

    def is_right(self, asked: Ask) -> bool:
        """Whether the text is what the engine must give, whole."""
        return asked.end == "length" and asked.text == self.right_text(asked)

    def right_text(self, asked: Ask) -> str:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=asked.max_tokens)
        output = self._oracle.expected_output(SequenceStart("x", asked.prompt, sampling), asked.max_tokens)
        text: str = self._tokenizer.decode(list(output), skip_special_tokens=True)
        return text

    async def judged(self) -> dict[str, int]:
        """Every ask so far has ended; how many in which way. Fails on a wrong text and an unnamed end."""
        await self.answers(*self.asks)
        ends: dict[str, int] = {}
        for asked in self.asks:
            ends[asked.end] = ends.get(asked.end, 0) + 1
            if asked.end == "length":
                assert asked.text == self.right_text(asked), f"wrong text: {asked}"
            elif asked.end == "cut off":
                assert self.router_died, asked
            else:
                assert asked.end in NAMED or asked.end == "left", asked
        return ends

    # --- members

    def signal(self, name: str, number: signal.Signals) -> None:
        self.router_died |= name == "router" and number == signal.SIGKILL
        self.fleet.kill(name, number)
        if number == signal.SIGKILL:
            self.fleet.members[name].process.wait(10)

    async def restart(self, name: str, **tables: Any) -> None:
        """End it if it lives, and start it again on its port, with these settings from now on."""
        member = self.fleet.members[name]
        if member.process.poll() is None:
            member.process.kill()
        await asyncio.to_thread(member.process.wait)
        assert member.reader is not None
        await asyncio.to_thread(member.reader.join)
        self._old_logs += member.log
        if name == "router":
            self.fleet.start_router()  # not on a thread: with the thread that starts it ends what watches its parent
            return
        if tables:
            self.fleet.own[name] = tables
        self.fleet.start_replica(name)
        await asyncio.to_thread(self.fleet.wait_ready, name)

    async def views(self) -> dict[str, dict[str, Any]]:
        """The last view of every live replica."""
        async with httpx.AsyncClient(base_url=self.fleet.url, timeout=20, verify=False) as http:
            shown = (await http.get("/decisions?limit=1")).json()["fleet"]["replicas"]
        return {replica["replica_id"]: replica["view"] for replica in shown}

    async def wait(self, condition: Callable[[dict[str, Any]], bool], deadline_s: float = SETTLED_S) -> None:
        """Until the views are as wanted."""
        deadline = time.monotonic() + deadline_s
        while not condition(views := await self.views()):
            assert time.monotonic() < deadline, self.story(views)
            await asyncio.sleep(0.03)

    async def incarnations(self) -> dict[str, str]:
        """Which process each live replica is."""
        return {name: view["incarnation"] for name, view in (await self.views()).items()}

    async def wait_idle(self) -> None:
        """No request anywhere, every block free, twice in a row: a view may be older than what just ended."""
        for _ in range(2):
            await self.wait(lambda views: bool(views) and all(is_idle(view) for view in views.values()))
            await asyncio.sleep(0.3)

    async def wait_whole(self) -> None:
        """Everybody is in the router's fleet, and every sender can reach every receiver that lives now."""

        def is_whole(shown: Mapping[str, Any]) -> bool:
            members = {one["replica_id"]: one for one in shown["replicas"] if one["closed"] is None}
            living = {(name, one["incarnation"]) for name, one in members.items() if one["role"] == "decode"}
            links = {
                name: {(link["peer_id"], link["peer_incarnation"]) for link in one["links"] if not link["why_not"]}
                for name, one in members.items()
                if one["role"] == "prefill"
            }
            return len(members) == len(self.fleet.members) - 1 and all(known >= living for known in links.values())

        deadline = time.monotonic() + SETTLED_S
        while not is_whole(await asyncio.to_thread(self.fleet.get, "/fleet")):
            assert time.monotonic() < deadline, (self.fleet.get("/fleet"), self.story())
            await asyncio.sleep(0.1)

    async def stand_at(self, step: str) -> list[Ask]:
        """On `slow_pair`: requests, the last of which stands at this step of its hand-off, by the views.

        On a busy machine a step can be over before it is seen: then another request is brought there.
        """
        for _ in range(5):
            asks = []
            if step == "reserved":
                asks.append(self.ask(1500, 20))  # keeps the sender busy
                await self.wait(lambda views: bool(views["p"]["running"] == 1))
            asks.append(last := self.ask(800, 150))
            while not last.over:
                if last.stands_at(step, await self.views()):
                    return asks
                await asyncio.sleep(0.02)
            await self.answers(*asks)
            await self.wait_idle()
        raise AssertionError(f"{step} was never seen; {self.story()}")

    # --- before and after

    async def settle(self) -> None:
        """The fleet is whole, has served, and is idle: what it uses now is what it may use after the next test."""
        self.asks.clear()
        self.router_died = False
        await self.wait_whole()
        await self._serves()
        self._used = {member.process.pid: usage(member) for member in self.fleet.members.values()}

    async def check(self) -> dict[str, int]:
        """See the module's head. Returns how the test's requests ended."""
        ends = await self.judged()
        for member in self.fleet.members.values():
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGCONT)
        if self.fleet.members["router"].process.poll() is not None:
            await self.restart("router")
        await self.wait_idle()
        for name, member in list(self.fleet.members.items()):
            if member.process.poll() is not None:
                await self.restart(name)
        await self.wait_whole()
        await self._serves()
        await self._uses_no_more()
        said = [*self._old_logs, *itertools.chain(*(member.log for member in self.fleet.members.values()))]
        broke = [index for index, line in enumerate(said) if "Traceback" in line]
        assert not broke, "\n".join(said[broke[0] - 5 : broke[0] + 40])
        return ends

    async def _serves(self) -> None:
        asked = [self.ask(length, 8, on_unavailable="fail", deadline_s=20.0) for length in (20, 300, 33, 140)]
        await self.answers(*asked)
        assert all(map(self.is_right, asked)), (asked, self.story())
        assert {one.layout for one in asked} == {"disaggregated"}
        await self.wait_idle()

    async def _uses_no_more(self) -> None:
        deadline = time.monotonic() + 20.0
        survivors = [member for member in self.fleet.members.values() if member.process.pid in self._used]
        while more := [
            f"{member.name}: {usage(member)} after {self._used[member.process.pid]}\n{opened(member)}"
            for member in survivors
            if any(a > b for a, b in zip(usage(member), self._used[member.process.pid], strict=True))
        ]:
            assert time.monotonic() < deadline, f"file descriptors and threads: {more}"
            await asyncio.sleep(0.1)

    def story(self, views: Mapping[str, Any] | None = None) -> str:
        """What to show when a test fails."""
        shown = {name: {key: view[key] for key in (*BUSY, "free_blocks")} for name, view in (views or {}).items()}
        logs = [f"{name}: {line}" for name, member in self.fleet.members.items() for line in member.log[-12:]]
        return "\n".join([str(shown), *logs])


StartPools = Callable[..., contextlib.AbstractContextManager[Pools]]


@pytest.fixture(scope="session")
def start_pools(tiny_model: Path) -> StartPools:
    """`with start_pools(p={...}, d={...}) as pools`: a replica a name, its role by the first letter."""

    @contextlib.contextmanager
    def start(*, router: tuple[str, ...] = (), **members: dict[str, Any]) -> Iterator[Pools]:
        roles = {name: Role.PREFILL if name.startswith("p") else Role.DECODE for name in members}
        fleet = LanFleet(
            None, roles, model=str(tiny_model), settings=SETTINGS, own=members, router_settings=(*ROUTER, *router)
        )
        with fleet:
            yield Pools(fleet, tiny_model)

    return start


@pytest.fixture(scope="module")
def slow_pair(start_pools: StartPools) -> Iterator[Pools]:
    """One sender and one receiver whose hand-offs take long enough to be hit at each step."""
    with start_pools(p={"fake": SLOW_STEPS, "transfer": SLOW_LINK}, d={"fake": SLOW_STEPS}) as pools:
        yield pools


@pytest.fixture
def checked() -> Callable[[Pools], contextlib.AbstractAsyncContextManager[Pools]]:
    """`async with checked(pools)`: settled before, checked after."""

    @contextlib.asynccontextmanager
    async def around(pools: Pools) -> AsyncIterator[Pools]:
        await pools.settle()
        yield pools
        await pools.check()

    return around

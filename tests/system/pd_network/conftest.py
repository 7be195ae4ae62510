"""Fleets whose replicas live on hosts of their own, on a small Ethernet that is shaped and cut at will.

The fake engine keeps real KV bytes and its tokens depend on them, so that a right text proves a right transfer; 512
bytes of KV a token make slow links quick to fill. In namespaces both replicas run one kernel: `Net.crossed` proves by
the counters of the cards that nothing went another way.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer

from contracts.batch import SequenceStart
from contracts.phase import Role
from contracts.request import SamplingParams
from engine.fake import FakeEngine, fake_layout, fake_spec
from experiments.network.fleet import LanFleet
from experiments.network.lan import FRAME_SHARE, Lan, missing

VOCAB = 400
CONTEXT = 16384
KV_BYTES_PER_TOKEN = 512
QUICK = {"a0": 0.002, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
SETTINGS: dict[str, Any] = {
    "kind": "fake",
    "fake": {"cost": QUICK, "vocab_size": VOCAB, "max_context": CONTEXT, "num_blocks": 4096},
    "core": {"kv_lease_max_s": 10.0, "link_probe_max_bytes": 4 << 20, "link_probe_min_bytes": 1 << 20},
    "transfer": {"transport": "tcp", "silence_s": 2.0, "connect_deadline_s": 3.0},
    "loop": {"router_silence_s": 3.0},
}
ROUTER = ("router.silence_s=2.5", "router.heartbeat_s=0.25")
NAMED = {"unavailable", "kv_handoff_failed", "overloaded", "deadline_exceeded"}
BUSY = ("running", "waiting", "receiving", "sending")
PAIR = {"p": Role.PREFILL, "d": Role.DECODE}


@dataclass(slots=True, eq=False)
class Ask:
    """One streaming client on a thread. `end` is "length" or an error's code."""

    prompt: tuple[int, ...]
    max_tokens: int
    wish: dict[str, str]
    began_s: float = field(default_factory=time.monotonic)
    text: str = ""
    first_s: float = 0.0
    took_s: float = 0.0
    status: int = 0
    end: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    thread: threading.Thread | None = None

    def run(self, url: str, deadline_s: float) -> None:
        """Ask, and read to the end."""
        body = {"model": "tiny", "prompt": list(self.prompt), "max_tokens": self.max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "phaseserve": self.wish}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=deadline_s) as answer:
                self.status, self.headers = answer.status_code, dict(answer.headers)
                if answer.status_code != 200:
                    self.end = msgspec.json.decode(answer.read())["error"]["code"]
                for line in answer.iter_lines():
                    self._take(line)
        except httpx.TransportError as error:
            self.end = f"{type(error).__name__} {error}"
        self.took_s = time.monotonic() - self.began_s

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = msgspec.json.decode(line.removeprefix("data: "))
        if "error" in event:
            self.end = event["error"]["code"]
            return
        for choice in event["choices"]:
            if choice["text"] and not self.text:
                self.first_s = time.monotonic() - self.began_s
            self.text += choice["text"]
            self.end = choice["finish_reason"] or self.end


class Net:
    """A fleet on a `Lan`: what clients, operators and cable cutters do."""

    def __init__(self, lan: Lan, fleet: LanFleet, model: Path) -> None:
        self.lan = lan
        self.fleet = fleet
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        spec = fake_spec(vocab_size=VOCAB, max_context=CONTEXT)
        self._oracle = FakeEngine(spec, fake_layout(spec), 1)
        self._salts = itertools.count(1)

    # --- clients

    def ask(
        self,
        num_tokens: int,
        max_tokens: int = 8,
        *,
        layout: str = "disaggregated",
        on_unavailable: str = "colocate",
        deadline_s: float = 90.0,
    ) -> Ask:
        """Start asking with a prompt that was never used before."""
        choose = random.Random(next(self._salts) * 1_000_003 + num_tokens)
        prompt = tuple(choose.randrange(3, VOCAB) for _ in range(num_tokens))
        asked = Ask(prompt, max_tokens, {"layout": layout, "on_unavailable": on_unavailable})
        asked.thread = threading.Thread(target=asked.run, args=(self.fleet.url, deadline_s), daemon=True)
        asked.thread.start()
        return asked

    def end(self, asked: Ask, deadline_s: float = 60.0) -> str:
        """How it ended. A whole answer is the right one; anything else has a name."""
        assert asked.thread is not None
        asked.thread.join(deadline_s)
        assert not asked.thread.is_alive(), f"no end within {deadline_s} s\n{self.story()}"
        if asked.end == "length":
            assert asked.text == self.right_text(asked), f"a wrong text\n{self.story()}"
        else:
            assert asked.end in NAMED, f"{asked.end}\n{self.story()}"
        return asked.end

    def served(self, asked: Ask, deadline_s: float = 60.0) -> Ask:
        """It was answered, and right."""
        assert self.end(asked, deadline_s) == "length", f"{asked.end}\n{self.story()}"
        return asked

    def right_text(self, asked: Ask) -> str:
        """What the engine must say."""
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=asked.max_tokens)
        output = self._oracle.expected_output(SequenceStart("x", asked.prompt, sampling), asked.max_tokens)
        text: str = self._tokenizer.decode(list(output), skip_special_tokens=True)
        return text

    # --- operators

    def views(self) -> dict[str, dict[str, Any]]:
        """The last view of every live replica."""
        shown = self.fleet.get("/decisions?limit=1")["fleet"]["replicas"]
        return {replica["replica_id"]: replica["view"] for replica in shown}

    def link(self, sender: str = "p", receiver: str = "d") -> dict[str, Any]:
        """One link, as /fleet shows it."""
        for replica in self.fleet.get("/fleet")["replicas"]:
            for link in replica["links"]:
                if (replica["replica_id"], link["peer_id"]) == (sender, receiver):
                    shown: dict[str, Any] = link
                    return shown
        return {"why_not": "not shown", "bytes_per_s": None, "age_s": 0.0, "transfers": 0}

    def usable(self, sender: str = "p", receiver: str = "d") -> bool:
        """Whether the link is up and measured."""
        link = self.link(sender, receiver)
        return link["why_not"] is None and link["bytes_per_s"] is not None

    def last_plan(self) -> dict[str, Any]:
        """The plan of the last request that was placed."""
        plan: dict[str, Any] = self.fleet.get("/decisions?limit=1")["decisions"][0]["plan"]
        return plan

    def log(self, name: str) -> str:
        """What a member has said."""
        return "\n".join(self.fleet.members[name].log)

    def story(self) -> str:
        """Who said what last."""
        lines = [f"{name}: {line}" for name, member in self.fleet.members.items() for line in member.log[-12:]]
        return "\n".join(lines)

    def wait(self, check: Callable[[], bool], deadline_s: float = 30.0) -> float:
        """Until it is so; returns the seconds that took."""
        began_s = time.monotonic()
        while not check():
            assert time.monotonic() < began_s + deadline_s, f"not within {deadline_s} s\n{self.story()}"
            time.sleep(0.05)
        return time.monotonic() - began_s

    def wait_whole(self, names: Sequence[str], deadline_s: float = 60.0) -> None:
        """Everybody is there, every link is up and measured, and nothing is under way or left anywhere."""

        def is_free(view: dict[str, Any]) -> bool:
            return not any(view[name] for name in BUSY) and bool(view["free_blocks"] == view["num_blocks"])

        def is_whole() -> bool:
            views = self.views()
            return views.keys() == set(names) and all(is_free(view) for view in views.values())

        self.wait(is_whole, deadline_s)
        givers = [name for name in names if self.views()[name]["role"] == "prefill"]
        takers = [name for name in names if self.views()[name]["role"] == "decode"]
        self.wait(lambda: all(self.usable(p, d) for p in givers for d in takers), deadline_s)

    # --- the cable

    @contextlib.contextmanager
    def crossed(self, num_bytes: int, sender: str = "p") -> Iterator[None]:
        """At least so many bytes leave the card of `sender` meanwhile."""
        before = self.lan.bytes_sent(sender)
        yield
        assert self.lan.bytes_sent(sender) - before >= num_bytes

    def wait_sent(self, num_bytes: int, sender: str = "p", deadline_s: float = 30.0) -> None:
        """Until so many more bytes have left its card."""
        before = self.lan.bytes_sent(sender)
        self.wait(lambda: self.lan.bytes_sent(sender) - before >= num_bytes, deadline_s)

    def payload_rate(self, wire_bytes_per_s: float) -> float:
        """What a link of this nominal rate carries of TCP payload."""
        return wire_bytes_per_s * FRAME_SHARE


StartNet = Callable[..., contextlib.AbstractContextManager[Net]]


@contextlib.contextmanager
def started(
    model: Path,
    roles: Mapping[str, Role],
    *,
    prepare: Callable[[Lan], None] = lambda _lan: None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    router_settings: Sequence[str] = (),
    **tables: Mapping[str, Any],
) -> Iterator[Net]:
    """A fleet on a Lan. `prepare` is done to the Lan first; `tables` add to every replica's settings."""
    settings = {**SETTINGS, **{name: {**SETTINGS.get(name, {}), **table} for name, table in tables.items()}}
    with Lan(list(roles)) as lan:
        prepare(lan)
        words = (*ROUTER, *router_settings)
        with LanFleet(lan, roles, model=str(model), settings=settings, own=own, router_settings=words) as fleet:
            net = Net(lan, fleet, model)
            net.wait(lambda: len(net.views()) == len(roles))
            yield net
            logs = {name: member.log for name, member in fleet.members.items()}
        broken = [line for log in logs.values() for line in log if "Traceback" in line or "never awaited" in line]
        assert not broken, logs


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Every fleet here needs network namespaces."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")


@pytest.fixture(scope="session")
def wide_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for long prompts."""
    folder = tmp_path_factory.mktemp("wide") / "tiny"
    shutil.copytree(tiny_model, folder)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(msgspec.json.encode({**config, "max_position_embeddings": CONTEXT}))
    return folder


@pytest.fixture(scope="session")
def start_net(namespaces: None, wide_model: Path) -> StartNet:
    """`with start_net(roles, ...) as net`: see `started`."""

    def start(roles: Mapping[str, Role], **settings: Any) -> contextlib.AbstractContextManager[Net]:
        return started(wide_model, roles, **settings)

    return start


@pytest.fixture(scope="session")
def shared_pair(start_net: StartNet) -> Iterator[Net]:
    """One prefill replica, one decode replica, a fast link."""
    with start_net(PAIR) as net:
        yield net


@pytest.fixture
def pair(shared_pair: Net) -> Iterator[Net]:
    """The shared pair, whole again and with nothing left after each test, at full speed at its beginning."""
    shared_pair.wait_whole(["p", "d"])
    yield shared_pair
    for name in ("p", "d"):
        shared_pair.lan.shape(name, None)
        shared_pair.lan.mend(name)
    shared_pair.wait_whole(["p", "d"])

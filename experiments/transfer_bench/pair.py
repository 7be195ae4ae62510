"""Two processes between which KV is handed over, and what one hand-off cost."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.load.machine import busy_seconds
from experiments.network.lan import Host
from experiments.transfer_bench.end import Answer, Shape

ANSWER_S = 180.0
END_S = 10.0
ROOT = Path(__file__).parents[2]


class EndError(Exception):
    """An end cannot do its part: what it said last."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to hand KV over. `module`: of the ends. `python`: the interpreter that has what they import."""

    name: str
    module: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One hand-off, from the taker's first step (reserve) to its last (all there, verified)."""

    num_bytes: int
    wall_s: float
    giver_cpu_s: float
    taker_cpu_s: float
    foreign_cpu_s: float
    giver: Answer
    taker: Answer


class End:
    """One process and the conversation with it."""

    def __init__(self, kind: Kind, host: Host | None, log: Path) -> None:
        argv = [kind.python, "-m", f"experiments.transfer_bench.{kind.module}"]
        env = {**os.environ, **kind.env, "PYTHONPATH": str(ROOT)}
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                argv if host is None else host.command(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=env,
                text=True,
            )

    def say(self, do: str, **words: Any) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either, which says why
            self._process.stdin.write(json.dumps({"do": do, **words}) + "\n")
            self._process.stdin.flush()

    def answer(self, deadline_s: float = ANSWER_S) -> Answer:
        """What it answers. Raises `EndError`."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], deadline_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            lines = [text for text in self._log.read_text().splitlines() if text.strip()]
            raise EndError(lines[-1] if lines and ready else f"no answer within {deadline_s:g} s")
        found: Answer = json.loads(line)
        return found

    def ask(self, do: str, **words: Any) -> Answer:
        """Both."""
        self.say(do, **words)
        return self.answer()

    def close(self) -> None:
        """End it, by force if it does not."""
        self.say("end")
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Pair:
    """A giver and a taker that are connected. A context manager. Raises `EndError`.

    `taker_kind`: where the taker is another program than the giver.
    """

    def __init__(
        self,
        kind: Kind,
        shape: Shape,
        hosts: Sequence[Host | None],
        logs: Path,
        *,
        taker_kind: Kind | None = None,
    ) -> None:
        self.kind = kind
        self.shape = shape
        self.about: Answer = {}
        stem = kind.name.replace(" ", "_").replace("/", "_")
        self.giver = End(kind, hosts[0], logs / f"{stem}_giver.log")
        self.taker = End(taker_kind or kind, hosts[1], logs / f"{stem}_taker.log")
        try:
            self._connect(hosts)
        except BaseException:
            self.close()
            raise

    def _connect(self, hosts: Sequence[Host | None]) -> None:
        words = [shape_words(self.shape, seed) for seed in (1, 1 << 40)]
        for end, host, word, is_taker in zip((self.giver, self.taker), hosts, words, (False, True), strict=True):
            address = "127.0.0.1" if host is None else host.address
            end.say("open", **word, options={"host": address, "tls": [], **self.kind.options, "taker": is_taker})
        giver, taker = self.giver.answer(), self.taker.answer()
        self.taker.say("accept", **giver)
        self.giver.say("connect", **taker)
        self.about = self.giver.answer()
        self.taker.answer()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        self.giver.close()
        self.taker.close()

    def hand_over(self, giver_table: Sequence[int], taker_table: Sequence[int]) -> Sample:
        """One hand-off of these blocks."""
        with foreign_cpu() as foreign:
            ticket = self.taker.ask("take", table=list(taker_table))
            self.taker.say("taken")
            self.giver.say("give", table=list(giver_table), ticket=ticket)
            giver, taker = self.giver.answer(), self.taker.answer()
        return self._sample(len(giver_table), giver, taker, foreign[0])

    def check(self, giver_table: Sequence[int], taker_table: Sequence[int]) -> None:
        """Raises `EndError` unless these blocks of both pools agree."""
        self.giver.say("check", table=list(giver_table))
        self.taker.say("check", table=list(taker_table))
        if self.giver.answer() != self.taker.answer():
            raise EndError("what arrived is not what was sent")

    def idle_cores(self, seconds: float) -> float:
        """Cores that both ends together use while nothing happens."""
        for end in (self.giver, self.taker):
            end.ask("reset")
        time.sleep(seconds)
        return sum(float(end.ask("idle")["cpu_s"]) for end in (self.giver, self.taker)) / seconds

    def _sample(self, num_blocks: int, giver: Answer, taker: Answer, other_cpu_s: float) -> Sample:
        both = giver["cpu_s"] + taker["cpu_s"]
        return Sample(
            num_bytes=self.shape.bytes_of(num_blocks),
            wall_s=taker["ended_at"] - taker["began_at"],
            giver_cpu_s=giver["cpu_s"],
            taker_cpu_s=taker["cpu_s"],
            foreign_cpu_s=max(0.0, other_cpu_s - both),
            giver=giver,
            taker=taker,
        )


def shape_words(shape: Shape, seed: int) -> Answer:
    """A pool as a command says it."""
    return {"shape": [shape.num_layers, shape.num_blocks, shape.block_bytes], "seed": seed}


@contextlib.contextmanager
def foreign_cpu() -> Iterator[list[float]]:
    """CPU seconds that the machine spent meanwhile, without our own; the list's one entry at the end."""
    found = [0.0]
    busy_s, own_s = busy_seconds(), time.process_time()
    yield found
    found[0] = busy_seconds() - busy_s - (time.process_time() - own_s)

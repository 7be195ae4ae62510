"""What streaming costs the one who computes: slowdown of a prefill, what of the transfer is left over after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from experiments.transfer_bench.bench import Bench, Place
from experiments.transfer_bench.end import Answer, Shape
from experiments.transfer_bench.figures import Hiding
from experiments.transfer_bench.pair import EndError, Kind, Pair, foreign_cpu
from experiments.transfer_bench.report import disturbed, hiding_cells
from experiments.transfer_bench.tables import Stride

PROMPT_TOKENS = 512
BLOCK_SIZE = 16
START_S = 15.0
MODES = ("alone", "its own KV", "link kept full")
HIDDEN_HEAD = ("link", "KV", "prefill", "exposed", "by the formula", "hidden", "by the formula")
SLOW_HEAD = (
    "link", "threads", "prefill 512 alone", "with its own KV going out", "slower", "with the link kept full", "slower",
    "foreign",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """The engine's model: name and the shape of its KV pool."""

    name: str
    shape: Shape
    threads: int


@dataclass(slots=True)
class Steps:
    """What was measured in turns, by mode."""

    step_s: dict[str, list[float]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    streamed: list[tuple[Answer, Answer]] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)

    def slower(self, mode: str) -> float:
        """Median step time over that of the prefill alone, less 1."""
        return median(self.step_s[mode]) / median(self.step_s["alone"]) - 1.0


def prefills(bench: Bench, place: Place, transport: str, model: Model, repeats: int) -> None:
    """Prefills alone, with their KV streaming out, and with the link kept full by other KV, in turns."""
    what = f"{place.name}, prefill with {model.threads} threads"
    seconds = START_S + repeats * 3 * 1.0 + repeats * 2 * 24e6 / (place.bytes_per_s or 1e9)
    if not bench.fits(seconds, what):
        return
    options = {"transport": transport, "fabric": "tcp", "model": model.name, "threads": model.threads}
    kinds = (Kind("prefill giver", "prefill_end", options), Kind("prefill taker", "service_end", options))
    try:
        with Pair(kinds[0], model.shape, place.hosts, bench.logs, taker_kind=kinds[1]) as pair:
            steps = Steps()
            _step(pair, "alone", Stride(model.shape.num_blocks), place, Steps(), bench)
            giver = Stride(model.shape.num_blocks)
            for number in range(repeats):
                if number and bench.left_s() < 0.0:
                    break
                for mode in MODES:
                    _step(pair, mode, giver, place, steps, bench)
            _tell(bench, place, model, pair, steps)
    except EndError as error:
        bench.report.note(f"{what}: not measured, {error}")


def _step(pair: Pair, mode: str, stride: Stride, place: Place, steps: Steps, bench: Bench) -> None:
    table = stride.take(PROMPT_TOKENS // BLOCK_SIZE)
    words: Answer = {"table": table, "num_tokens": PROMPT_TOKENS, "ticket": None, "other": None}
    if mode == "its own KV":
        words["ticket"] = pair.taker.ask("take", table=table)["ticket"]
        pair.taker.say("taken")
    elif mode == "link kept full":
        rate = place.bytes_per_s or 1e9
        fill_s = 1.5 * median(steps.step_s["alone"])
        count = max(1, min(int(rate * fill_s) // pair.shape.bytes_of(1), pair.shape.num_blocks // 2))
        other = stride.take(count)
        words["other"] = [pair.taker.ask("take", table=other)["ticket"], other]
        pair.taker.say("taken")
    with foreign_cpu() as busy:
        pair.giver.say("prefill", **words)
        giver = pair.giver.answer()
        taker = pair.taker.answer() if mode != "alone" else {"cpu_s": 0.0}
    steps.step_s[mode].append(giver["step_s"])
    used_s = giver["cpu_s"] + taker["cpu_s"]
    wall_s = giver["ended_at"] - giver["began_at"]
    steps.foreign.append(max(0.0, busy[0] - used_s) / (wall_s * bench.num_cores))
    if mode == "its own KV":
        steps.streamed.append((giver, taker))


def _tell(bench: Bench, place: Place, model: Model, pair: Pair, steps: Steps) -> None:
    alone_s = median(steps.step_s["alone"])
    cells = [
        place.name, str(model.threads), f"{alone_s * 1e3:.0f} ms",
        f"{median(steps.step_s['its own KV']) * 1e3:.0f} ms", f"{steps.slower('its own KV'):+.1%}",
        f"{median(steps.step_s['link kept full']) * 1e3:.0f} ms", f"{steps.slower('link kept full'):+.1%}",
        disturbed(median(steps.foreign)),
    ]  # fmt: skip
    bench.report.line("Slowdown of compute", SLOW_HEAD, cells, steps.step_s)
    hiding = Hiding(
        num_bytes=pair.shape.bytes_of(PROMPT_TOKENS // BLOCK_SIZE),
        num_layers=pair.shape.num_layers,
        prefill_s=median(steps.step_s["its own KV"]),
        bytes_per_s=place.bytes_per_s or float(pair.about["bytes_per_s"]),
        latency_s=float(pair.about["latency_s"]),
        exposed_s=median(taker["ended_at"] - giver["step_ended_at"] for giver, taker in steps.streamed),
        transfer_s=median(float(taker["transfer_s"]) for _, taker in steps.streamed),
    )
    bench.report.line("Streaming behind a prefill", HIDDEN_HEAD, hiding_cells(place.name, hiding))

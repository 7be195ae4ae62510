"""What streaming costs the one who computes: slowdown of a prefill, what of the transfer is left over after it.

Left over ("exposed") is what comes after the step that computed the first token: the time added before the first
decode step. The formula lets a layer's KV go when the layer is computed; in truth it goes before that layer's attention
and feed-forward, so up to one layer's time less is left over than the formula says.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from experiments.transfer_bench.bench import MAX_EXTRA, Bench, Place
from experiments.transfer_bench.end import Answer, Shape
from experiments.transfer_bench.figures import DISTURBED_SHARE, Hiding
from experiments.transfer_bench.pair import EndError, Kind, Pair, foreign_cpu
from experiments.transfer_bench.report import disturbed, hiding_cells
from experiments.transfer_bench.tables import Stride

PROMPT_TOKENS = 512
BLOCK_SIZE = 16
START_S = 15.0
FILL = 1.5
"""So much longer than the step alone takes the other KV of a full link to cross."""
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


@dataclass(frozen=True, slots=True)
class Step:
    """One prefill: how long, what others took meanwhile, and what both ends said."""

    step_s: float
    foreign_share: float
    giver: Answer
    taker: Answer


Round = dict[str, Step]
"""A step of each mode, one after the other."""


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
            stride = Stride(model.shape.num_blocks)
            _step(pair, "alone", stride, place, 0.0, bench.num_cores)  # warm
            _tell(bench, place, model, pair, _rounds(bench, place, pair, stride, repeats))
    except EndError as error:
        bench.report.note(f"{what}: not measured, {error}")


def _rounds(bench: Bench, place: Place, pair: Pair, stride: Stride, repeats: int) -> list[Round]:
    """The least disturbed of some more rounds than are needed, where some were disturbed."""
    rounds: list[Round] = []
    while len(rounds) < repeats + MAX_EXTRA:
        step_s = 0.0
        steps: Round = {}
        for mode in MODES:
            steps[mode] = _step(pair, mode, stride, place, step_s, bench.num_cores)
            step_s = steps["alone"].step_s
        rounds.append(steps)
        quiet = [one for one in rounds if disturbance(one) <= DISTURBED_SHARE]
        if len(quiet) >= repeats or bench.left_s() < 0.0:
            break
    return sorted(rounds, key=disturbance)[:repeats]


def disturbance(steps: Round) -> float:
    """The largest share that others took during a step of a round."""
    return max(step.foreign_share for step in steps.values())


def _step(pair: Pair, mode: str, stride: Stride, place: Place, alone_s: float, num_cores: int) -> Step:
    table = stride.take(PROMPT_TOKENS // BLOCK_SIZE)
    words: Answer = {"table": table, "num_tokens": PROMPT_TOKENS, "ticket": None, "other": None}
    if mode == "its own KV":
        words["ticket"] = pair.taker.ask("take", table=table)["ticket"]
        pair.taker.say("taken")
    elif mode == "link kept full":
        num_bytes = int((place.bytes_per_s or 1e9) * FILL * alone_s)
        other = stride.take(max(1, min(num_bytes // pair.shape.bytes_of(1), pair.shape.num_blocks // 2)))
        words["other"] = [pair.taker.ask("take", table=other)["ticket"], other]
        pair.taker.say("taken")
    with foreign_cpu() as busy:
        pair.giver.say("prefill", **words)
        giver = pair.giver.answer()
        taker = pair.taker.answer() if mode != "alone" else {"cpu_s": 0.0}
    wall_s = giver["ended_at"] - giver["began_at"]
    foreign_s = max(0.0, busy[0] - giver["cpu_s"] - taker["cpu_s"])
    return Step(giver["step_s"], foreign_s / (wall_s * num_cores), giver, taker)


def _tell(bench: Bench, place: Place, model: Model, pair: Pair, rounds: list[Round]) -> None:
    alone_s, own_s, full_s = (median(steps[mode].step_s for steps in rounds) for mode in MODES)
    cells = [
        place.name, str(model.threads), f"{alone_s * 1e3:.0f} ms",
        f"{own_s * 1e3:.0f} ms", f"{own_s / alone_s - 1.0:+.1%}", f"{full_s * 1e3:.0f} ms",
        f"{full_s / alone_s - 1.0:+.1%}", disturbed(median(disturbance(steps) for steps in rounds)),
    ]  # fmt: skip
    bench.report.line("Slowdown of compute", SLOW_HEAD, cells, [alone_s, own_s, full_s])
    streamed = [steps["its own KV"] for steps in rounds]
    hiding = Hiding(
        num_bytes=pair.shape.bytes_of(PROMPT_TOKENS // BLOCK_SIZE),
        num_layers=pair.shape.num_layers,
        prefill_s=own_s,
        bytes_per_s=place.bytes_per_s or float(pair.about["bytes_per_s"]),
        latency_s=float(pair.about["latency_s"]),
        exposed_s=median(step.taker["ended_at"] - step.giver["step_ended_at"] for step in streamed),
        transfer_s=median(float(step.taker["transfer_s"]) for step in streamed),
    )
    bench.report.line("Streaming behind a prefill", HIDDEN_HEAD, hiding_cells(place.name, hiding))

"""Each published figure with the words of its source, and ours for it from the hardware and model files."""

from __future__ import annotations

import msgspec

from scheduling.step_shape import StepShape
from simulator.models import model
from simulator.roofline import Roofline

PROMPT = 2048
"""Tokens of a prefill step where a paper does not say how long its prompts were."""
ECOSERVE, DCP = "EcoServe (OSDI'26) table 3", "DCP (OSDI'26)"
SARATHI, LAYERED = "Sarathi-Serve (OSDI'24)", "LayeredPrefill (MLSys'26)"
OURS = "this engine, experiments/RESULTS.md"
FITTED, CHECKED, LOOSE = "fitted", "checked", "loose"
"""Whether constants or the form of the model were chosen by it, whether it says how well they hold elsewhere, or
whether the set-up that the paper measured is not known well enough for more than an order of magnitude."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`published` and `ours` in `unit`; `where` is the set-up that several figures of a source share. A `bound` above
    or below is met when ours lies on its side of `published`."""

    what: str
    where: str = ""
    source: str
    unit: str
    published: float
    ours: float
    use: str
    bound: str = ""

    @property
    def name(self) -> str:
        """What it is, and of which set-up."""
        return f"{self.what}, {self.where}" if self.where else self.what

    @property
    def residual(self) -> float:
        """Relative; of a bound that is met it is zero."""
        off = self.ours / self.published - 1.0
        met = (self.bound == "below" and off <= 0.0) or (self.bound == "above" and off >= 0.0)
        return 0.0 if met else off


def prefill(chunk: int, past: int = 0) -> StepShape:
    """One chunk."""
    shape = StepShape()
    shape.add_prefill(past, chunk)
    return shape


def decodes(rows: int, context: int) -> StepShape:
    """So many decode rows of one context length."""
    shape = StepShape()
    shape.add_decodes(rows, rows * context)
    return shape


def all_figures() -> list[Figure]:
    """In the order of the table."""
    return [*_prefill_rates(), *_steps(), *_chunks(), *_experts(), *_cpu()]


def _prefill_rates() -> list[Figure]:
    rates = (
        ("llama-30b", "Llama-30B", "l20", 4, 6584.6),
        ("codellama2-34b", "CodeLlama2-34B", "l20", 4, 6838.92),
        ("llama-30b", "Llama-30B", "a800", 2, 26189.2),
        ("codellama2-34b", "CodeLlama2-34B", "a800", 2, 25978.88),
    )
    found = []
    for name, title, on, tp, tokens_s in rates:
        cost = Roofline(model=name, hardware=on, tp=tp)
        ours = 8 // tp * PROMPT / cost.step_s(prefill(PROMPT))
        where = f"{title}, 8 {on.upper()}, TP{tp}"
        found.append(
            Figure(
                what=f"prefill, {where}", source=ECOSERVE, unit="tokens/s", published=tokens_s, ours=ours, use=FITTED
            )
        )
    return found


def _steps() -> list[Figure]:
    cost = Roofline(model="qwen2.5-32b", hardware="a100-40", pp=4)

    def ratio(large: StepShape, small: StepShape) -> float:
        return cost.step_s(large) / cost.step_s(small)

    where = "Qwen2.5-32B on 4 A100-40GB, PP4"
    rows = (
        ("decode batch of 128 to one of 96", 1.05, ratio(decodes(128, 300), decodes(96, 300)), "ratio", FITTED),
        ("decode batch of 160 to one of 128", 1.31, ratio(decodes(160, 300), decodes(128, 300)), "ratio", FITTED),
        ("256 tokens to 129", 1.0, ratio(prefill(256), prefill(129)), "ratio", FITTED),
        (
            "P-P bubble of prompts of 2048 and 128, over the stages", 627.0,
            1e3 * (sum(cost.stage_times_s(prefill(2048))) - sum(cost.stage_times_s(prefill(128)))), "ms", LOOSE,
        ),
        ("P90 iteration with chunks of 512", 51.68, 1e3 * max(cost.stage_times_s(prefill(512, 1024))), "ms", LOOSE),
    )  # fmt: skip
    return [
        Figure(what=what, where=where, source=DCP, unit=unit, published=published, ours=ours, use=use)
        for what, published, ours, unit, use in rows
    ]


def _chunks() -> list[Figure]:
    """Sarathi's Yi-34B has the size of CodeLlama2-34B, which stands for it."""
    cost = Roofline(model="codellama2-34b", hardware="a100-80", tp=2)
    prompt = 8192
    whole_s = cost.step_s(prefill(prompt))

    def overhead(chunk: int) -> float:
        return 100.0 * (sum(cost.step_s(prefill(chunk, past)) for past in range(0, prompt, chunk)) / whole_s - 1.0)

    where = "34B on 2 A100-80GB, TP2"
    slower = 100.0 * (cost.step_s(prefill(257)) / cost.step_s(prefill(256)) - 1.0)
    rows = (
        ("257 tokens slower than 256 by up to", 32.0, slower, "", FITTED),
        ("chunks of 512 longer than the whole by up to", 25.0, overhead(512), "below", CHECKED),
        ("chunks of 2048 longer than the whole, about none: at most", 5.0, overhead(2048), "below", CHECKED),
    )
    return [
        Figure(what=what, where=where, source=SARATHI, unit="%", published=published, ours=ours, use=use, bound=bound)
        for what, published, ours, bound, use in rows
    ]


def _experts() -> list[Figure]:
    of = model("qwen3-30b-a3b")
    assert of.moe is not None
    moe, name = of.moe, "Qwen3-30B-A3B"
    found = [
        Figure(
            what=f"experts reached by a decode batch of {batch}", where=name, source=LAYERED, unit="%",
            published=share, ours=100.0 * moe.covered(batch) / moe.num_experts, use=FITTED, bound=bound,
        )
        for batch, share, bound in ((16, 50.0, "below"), (64, 70.0, "below"), (128, 86.3, ""))
    ]  # fmt: skip
    prompt, expert_gb = 9194, 2.0 * of.expert_params / 1e9
    for chunk, gb in ((512, 955.0), (2048, 304.0)):
        full, rest = divmod(prompt, chunk)
        reached = full * moe.covered(chunk) + (moe.covered(rest) if rest else 0.0)
        found.append(
            Figure(
                what=f"experts' weights read for a prompt of {prompt} in chunks of {chunk}", where=name,
                source=LAYERED, unit="GB", published=gb, ours=reached * of.num_layers * expert_gb, use=CHECKED,
            )
        )  # fmt: skip
    cost = Roofline(model="qwen3-30b-a3b", hardware="h100", tp=2)
    for chunk, ms in ((512, 48.4), (2048, 129.0)):
        step = prefill(chunk, prompt - chunk)
        step.add_decodes(32, 32 * prompt)
        found.append(
            Figure(
                what=f"P99 time between tokens with chunks of {chunk}", where=f"{name} on 2 H100 (here: 32 streams)",
                source=LAYERED, unit="ms", published=ms, ours=1e3 * cost.step_s(step), use=LOOSE,
            )
        )  # fmt: skip
    return found


def _cpu() -> list[Figure]:
    """Of the kind of replica that did better in each row of that table; int8 was measured on alternating ones only."""
    mixed, alternating = "mixed", "alternating"
    found = []
    for dtype, prefills, rows in (
        (
            "float32",
            ((512, 959.0, alternating), (1200, 876.0, mixed)),
            ((1, 27.0, mixed), (8, 50.1, alternating), (16, 80.6, alternating)),
        ),
        (
            "int8",
            ((512, 2680.0, alternating), (1200, 1945.0, alternating)),
            ((1, 11.8, alternating), (8, 31.3, alternating), (16, 49.3, alternating)),
        ),
    ):
        cost = Roofline(model="smollm2-135m", hardware="cpu-amx-2core", dtype=dtype, kv_dtype="float32")
        where = f"SmolLM2-135M {dtype}, 2 cores with AMX"
        found += [
            Figure(
                what=f"prefill of {tokens} ({role})", where=where, source=OURS, unit="tokens/s", published=tokens_s,
                ours=tokens / _chunked_s(cost, tokens), use=FITTED,
            )
            for tokens, tokens_s, role in prefills
        ]  # fmt: skip
        found += [
            Figure(
                what=f"decode step of {streams} ({role})", where=where, source=OURS, unit="ms", published=ms,
                ours=1e3 * cost.step_s(decodes(streams, 512 + 32)), use=FITTED,
            )
            for streams, ms, role in rows
        ]  # fmt: skip
    return found


def _chunked_s(cost: Roofline, prompt: int, chunk: int = 512) -> float:
    """A prompt in steps of so many tokens."""
    return sum(cost.step_s(prefill(min(chunk, prompt - past), past)) for past in range(0, prompt, chunk))

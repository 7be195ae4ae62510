"""The roofline beside published figures: one set of constants for each kind of hardware, all residuals shown.

python -m experiments.published_rates          prints the table, writes RESULT.md and the picture beside this file
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from experiments.load.command_line import end
from experiments.load.origin import commit
from experiments.published_rates.figures import CHECKED, FITTED, LOOSE, PROMPT, Figure, all_figures
from experiments.published_rates.picture import PICTURE, draw
from simulator.drawing import missing, write_picture
from simulator.files import write_whole

RESULT = Path(__file__).parent / "RESULT.md"


def run(words: list[str]) -> int:
    """Compute, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.published_rates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(words)
    figures = all_figures()
    drawn = missing() is None
    text = "\n".join(report(figures, commit(), drawn)) + "\n"
    print(text, end="")
    if not options.no_report:
        if drawn:
            write_picture(RESULT.with_name(PICTURE), draw(figures))
        write_whole(RESULT, text.encode())
    return 0


def report(figures: Sequence[Figure], at: str, drawn: bool) -> list[str]:
    """The lines of RESULT.md; `at` is the commit, `drawn` whether there is a picture."""
    lines = [
        "# The roofline beside published figures",
        "",
        f"`python -m experiments.published_rates`, {datetime.now(UTC).date().isoformat()}, commit {at}.",
        "",
        "Nothing is measured here: data sheets and config.json files (`simulator/hardware_files`,",
        "`simulator/model_files`, each number with its source) through `simulator.roofline`, one set of constants for",
        "each kind of hardware. *Fitted*: constants, or the form of the model, were chosen by it. *Checked*: they were",
        "not. *Loose*: the paper does not say enough of the set-up for more than an order of magnitude. Prompts whose",
        f"length is not said are {PROMPT} tokens in one step.",
        "",
        "| figure | source | use | published | ours | residual |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for one in figures:
        sign = {"below": "≤ ", "above": "≥ "}.get(one.bound, "")
        lines.append(
            f"| {one.name} | {one.source} | {one.use} | {sign}{one.published:,.4g} {one.unit} |"
            f" {one.ours:,.4g} {one.unit} | {one.residual:+.0%} |"
        )
    picture = [
        "",
        f"![residuals of all figures]({PICTURE})",
        "",
        "Simulated against printed; the shaded band is 10 % to either side. A bound that is met has no residual.",
    ]
    return [*lines, *(picture if drawn else []), "", *_honest(figures)]


def _honest(figures: Sequence[Figure]) -> list[str]:
    words = []
    for use in (FITTED, CHECKED, LOOSE):
        mine = [one for one in figures if one.use == use]
        worst = max(mine, key=lambda one: abs(one.residual))
        words.append(
            f"- {use}: mean residual without its sign {fmean(abs(one.residual) for one in mine):.0%} of {len(mine)};"
            f" farthest off: {worst.name} ({worst.residual:+.0%})."
        )
    return [
        *words,
        "",
        "What this does not show: decode rates on GPUs (no paper at hand prints one with its batch and context): the",
        "launch and per-row constants of GPUs are estimates; H200, B200 and RTX 5090 have no published figure here at",
        "all. EcoServe's two prefill rates on A800 cannot be reached over PCIe alone with shares up to 0.9; the A800",
        "file assumes NVLink bridges between pairs, which the paper does not mention. Three of that table's four cells",
        "are quoted from memory of the paper; the fourth (38.96 GiB/s of KV, so 26,189 tokens/s) is confirmed by a",
        "second source. LayeredPrefill's steps are two to three times as long as ours: a P99 has other work in it, and",
        "its engine's kernels for small experts are far from the roofline.",
    ]


if __name__ == "__main__":
    end("published_rates", lambda: run(sys.argv[1:]))

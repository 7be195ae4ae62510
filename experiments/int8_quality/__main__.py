"""`python -m experiments.int8_quality`: int8 weights against fp32 on 200 prompts, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from engine.checkpoint.model_files import ModelFiles
from engine.checkpoint.resolve import resolve_model
from engine.config import EngineConfig
from experiments.int8_quality.comparison import Comparison, Figures
from experiments.int8_quality.prompts import user_messages
from experiments.int8_quality.recording import RecordedEngine, Tokens, perplexity
from experiments.int8_quality.texts import TEXTS
from experiments.load.command_line import end
from experiments.load.machine import describe_machine
from router.chat_template import ChatTemplate

GROUP = 16  # prompts at a time: their logits are held for both engines, 100 MB each at a vocabulary of 49,152


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.int8_quality", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--prompts", type=int, default=200, help="how many of the 200 prompts")
    parser.add_argument("--positions", type=int, default=32, help="teacher-forced positions of each prompt")
    parser.add_argument(
        "--out", type=Path, default=Path("results/int8_quality"), help="where the JSON goes (default %(default)s)"
    )
    return parser.parse_args(argv)


def encoded_prompts(files: ModelFiles, tokenizer: Tokenizer, count: int) -> list[Tokens]:
    """The first `count` messages as the model sees them: through its chat template, or as plain text without one."""
    messages = user_messages()[:count]
    if files.chat_template is not None:
        template = ChatTemplate(files.chat_template, files.special_tokens)
        rendered = [
            template.render([{"role": "user", "content": message}], add_generation_prompt=True) for message in messages
        ]
    else:
        rendered = list(messages)
    return [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in rendered]


def measure(files: ModelFiles, tokenizer: Tokenizer, options: argparse.Namespace) -> Figures:
    """Run both engines side by side."""
    prompts = encoded_prompts(files, tokenizer, options.prompts)
    texts = [tuple(tokenizer.encode(text).ids) for text in TEXTS]
    longest = max(map(len, prompts)) + options.positions
    num_blocks = GROUP * -(-longest // EngineConfig().block_size)
    settings = {"model": files.name, "dtype": "float32", "threads": options.threads, "num_blocks": num_blocks}
    reference = RecordedEngine(files, EngineConfig(**settings))
    quantized = RecordedEngine(files, EngineConfig(**settings, quantization="int8"))
    comparison = Comparison()
    for first in range(0, len(prompts), GROUP):
        group = prompts[first : first + GROUP]
        outputs, expected = reference.continue_greedily(group, options.positions)
        _, got = quantized.continue_greedily(group, options.positions, forced=outputs)
        comparison.add(expected, got)
        print(f"\r{first + len(group)} of {len(prompts)} prompts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    likelihoods = [
        [n for text in texts for n in engine.negative_log_likelihoods(text)] for engine in (reference, quantized)
    ]
    reference.close()
    quantized.close()
    return comparison.figures() | _perplexities(likelihoods)


def _perplexities(likelihoods: Sequence[Sequence[float]]) -> Figures:
    before, after = (perplexity(each) for each in likelihoods)
    return {
        "text_tokens": len(likelihoods[0]),
        "perplexity_fp32": before,
        "perplexity_int8": after,
        "perplexity_change": after / before - 1.0,
    }


def markdown(head: list[str], figures: Figures) -> str:
    """The table."""
    positions = int(figures["positions"])
    rows = {
        f"next token agrees, at the last token of {int(figures['prompts'])} prompts": (
            f"{figures['agreement_last_prompt_token']:.1%}"
        ),
        f"next token agrees, at {positions} teacher-forced positions": f"{figures['agreement_all_positions']:.2%}",
        "prompts where every position agrees": f"{figures['prompts_agreeing_everywhere']:.1%}",
        "where it differs: how much likelier fp32 finds its own choice": (
            f"{figures['regret_mean_where_different']:.3f} nats (most: {figures['regret_max']:.3f})"
        ),
        "logit error, mean": f"{figures['logit_error_mean']:.4f}",
        "logit error, largest": f"{figures['logit_error_max']:.3f}",
        "logit error, root mean square over the logits' standard deviation": f"{figures['logit_error_relative']:.2%}",
        "KL(fp32, int8), mean / P95 / largest": (
            f"{figures['kl_mean']:.5f} / {figures['kl_p95']:.5f} / {figures['kl_max']:.4f} nats"
        ),
        f"perplexity of {int(figures['text_tokens'])} tokens of text, fp32 to int8": (
            f"{figures['perplexity_fp32']:.3f} to {figures['perplexity_int8']:.3f} "
            f"({figures['perplexity_change']:+.2%})"
        ),
    }
    lines = [*head, "", "| int8 against fp32 | |", "| --- | ---: |"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())]) + "\n"


def main(argv: list[str]) -> None:
    """Measure, print, save."""
    options = parse(argv)
    began = time.monotonic()
    files = resolve_model(options.model)
    figures = measure(files, Tokenizer.from_file(str(files.tokenizer_file)), options)
    command = shlex.join(["python", "-m", "experiments.int8_quality", *argv])
    head = [f"`{command}`, {describe_machine()}, {time.monotonic() - began:.0f} s"]
    table = markdown(head, figures)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "int8_quality.md").write_text(table)
    (options.out / "int8_quality.json").write_text(json.dumps({"head": head, "figures": figures}, indent=1))
    print(table, end="")


if __name__ == "__main__":
    end("int8_quality", lambda: main(sys.argv[1:]))

"""`phaseserve chat`: one question to a running server, the answer as it comes, and what it cost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, TextIO

from cli.http_client import ServerError, chat_events, served_models


def ask(
    url: str, question: str, *, max_tokens: int | None, temperature: float, timeout_s: float, out: TextIO = sys.stdout
) -> None:
    """Print the answer to `question`, then one line of figures. Raises `ServerError`."""
    api_key = os.environ.get("OPENAI_API_KEY")
    models = served_models(url, api_key=api_key, timeout_s=timeout_s)
    if not models:
        raise ServerError(f"{url} serves no model")
    body: dict[str, Any] = {
        "model": models[0],
        "messages": [{"role": "user", "content": question}],
        "temperature": temperature,
        "stream_options": {"include_usage": True},
    }
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    began = time.monotonic()
    first = last = None
    usage: dict[str, Any] = {}
    for event in chat_events(url, body, api_key=api_key, timeout_s=timeout_s):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                last = time.monotonic()
                first = first or last
                out.write(text)
                out.flush()
    out.write("\n" + figures(began, first, last, usage) + "\n")
    out.flush()


def figures(began: float, first: float | None, last: float | None, usage: dict[str, Any]) -> str:
    """One line: tokens in and out, TTFT and TPOT as this client saw them."""
    output = int(usage.get("completion_tokens", 0))
    parts = [f"{usage.get('prompt_tokens', '?')} prompt tokens", f"{output} output tokens"]
    if first is not None and last is not None:
        parts.append(f"TTFT {(first - began) * 1e3:.0f} ms")
        if output > 1:
            parts.append(f"TPOT {(last - first) / (output - 1) * 1e3:.1f} ms")
    return "(" + ", ".join(parts) + ")"


def read_question(words: list[str]) -> str:
    """The question from the command line, or from standard input when it is `-`. Raises `ServerError` when empty."""
    question = sys.stdin.read() if words == ["-"] else " ".join(words)
    if not question.strip():
        raise ServerError("the question is empty")
    return question


def run(words: list[str]) -> int:
    """`phaseserve chat "question"`."""
    parser = argparse.ArgumentParser(prog="phaseserve chat", description=__doc__)
    parser.add_argument("question", nargs="+", help="the question, or - for standard input")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    arguments = parser.parse_args(words)
    try:
        ask(
            arguments.url.rstrip("/"),
            read_question(arguments.question),
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            timeout_s=arguments.timeout,
        )
    except ServerError as error:
        print(f"phaseserve chat: {error}", file=sys.stderr)
        return 1
    return 0

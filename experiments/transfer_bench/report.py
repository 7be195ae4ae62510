"""The tables of a run, as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.transfer_bench.figures import DISTURBED_SHARE, Followed, Hiding, Row

ROW_HEAD = (
    "link", "how", "what", "GB/s", "of socket", "of link", "CPU s/GB giver", "taker", "to socket", "cores", "foreign",
)  # fmt: skip


class Report:
    """Collects tables in order; each line is printed when it is known."""

    def __init__(self, head: Sequence[str]) -> None:
        self._head = list(head)
        self._tables: dict[str, tuple[Sequence[str], list[Sequence[str]]]] = {}
        self._notes: list[str] = []
        self._data: list[dict[str, Any]] = []

    def add(self, row: Row) -> None:
        """One row of hand-offs."""
        own = row.own
        self.line("Whole hand-offs", ROW_HEAD, [
            row.link, row.kind, row.what, f"{own.bytes_per_s / 1e9:.3f}", percent(row.share), percent(row.link_share),
            f"{own.giver_cpu_s_per_gb:.2f}", f"{own.taker_cpu_s_per_gb:.2f}",
            "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}x", f"{own.cores:.2f}", disturbed(own.foreign_share),
        ])  # fmt: skip
        self._data.append({"row": dataclasses.asdict(row)})

    def line(self, table: str, head: Sequence[str], cells: Sequence[str], data: Any = None) -> None:
        """One line of a table, which begins with its first line."""
        _, lines = self._tables.setdefault(table, (head, []))
        lines.append(cells)
        named = [
            cell if i < 3 else f"{name} {cell}" for i, (name, cell) in enumerate(zip(head, cells, strict=True)) if cell
        ]
        print(f"{table}: " + "  ".join(named), flush=True)
        if data is not None:
            self._data.append({table: data})

    def note(self, text: str) -> None:
        """Something that has to be known beside the figures."""
        self._notes.append(text)
        print(f"note: {text}", flush=True)

    def markdown(self) -> str:
        """All of it."""
        parts = ["\n".join(self._head)]
        for name, (head, lines) in self._tables.items():
            rows = [head, ["---"] * len(head), *lines]
            parts.append(f"### {name}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows))
        if self._notes:
            parts.append("\n".join(f"- {note}" for note in self._notes))
        return "\n\n".join(parts) + "\n"

    def save(self, folder: Path) -> None:
        """Write `transfer_bench.md` and `transfer_bench.json`."""
        (folder / "transfer_bench.md").write_text(self.markdown())
        (folder / "transfer_bench.json").write_text(json.dumps(self._data, indent=1))


def percent(share: float | None) -> str:
    """A share as text; nothing where there is none."""
    return "" if share is None else f"{share:.1%}"


def disturbed(share: float) -> str:
    """The CPU that others took, marked where the row was disturbed for all its repetitions."""
    return f"{share:.0%}" + (" (disturbed)" if share > DISTURBED_SHARE else "")


def hiding_cells(place: str, hiding: Hiding) -> list[str]:
    """A line of the table of hidden transfers."""
    return [
        place, f"{hiding.num_bytes / 1e6:.1f} MB", f"{hiding.prefill_s * 1e3:.0f} ms",
        f"{hiding.exposed_s * 1e3:.1f} ms", f"{hiding.predicted_exposed_s * 1e3:.1f} ms",
        percent(hiding.hidden_share), percent(hiding.predicted_hidden_share),
    ]  # fmt: skip


def followed_cells(followed: Followed, tolerance: float) -> list[str]:
    """Errors of the estimate after each measurement, and after how many it was good."""
    after = followed.within(tolerance)
    return [", ".join(f"{error:+.1%}" for error in followed.errors), "never" if after is None else str(after)]

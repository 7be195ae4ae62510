"""The figures as a markdown table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.engine_bench.workloads import Figure


@dataclass(slots=True)
class Report:
    """Rows by workload, columns by server. `head` says machine, versions and command."""

    head: list[str]
    columns: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, Figure]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, row: str, column: str, figure: Figure) -> None:
        """One figure. Rows and columns appear in the order of their first figure."""
        if column not in self.columns:
            self.columns.append(column)
        self.rows.setdefault(row, {})[column] = figure

    def markdown(self) -> str:
        """Everything for a reader."""
        lines = [*self.head, "", "| | " + " | ".join(self.columns) + " | limit |"]
        lines.append("| --- |" + " ---: |" * (len(self.columns) + 1))
        for row, cells in self.rows.items():
            limit = self.limits.get(row)
            shown = [_cell(cells.get(column), limit) for column in self.columns]
            lines.append(f"| {row} | " + " | ".join(shown) + f" | {f'{limit:.0f}' if limit else ''} |")
        return "\n".join([*lines, "", *(f"* {note}" for note in self.notes)]) + "\n"

    def save(self, folder: Path) -> None:
        """`engine_bench.json` and `engine_bench.md` in `folder`; called after each server, so a kill loses little."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "engine_bench.json").write_text(json.dumps(asdict(self), indent=1))
        (folder / "engine_bench.md").write_text(self.markdown())


def _cell(figure: Figure | None, limit: float | None) -> str:
    if figure is None:
        return "-"
    detail = figure.detail
    if "rate" in detail:
        errors = f", {detail['errors']:.0f} errors" if detail["errors"] else ""
        return (
            f"{figure.value:.2f} (TTFT {detail.get('ttft_p50_s', 0):.2f}/{detail.get('ttft_p90_s', 0):.2f} s, "
            f"TPOT {detail.get('tpot_p50_ms', 0):.0f}/{detail.get('tpot_p90_ms', 0):.0f} ms{errors})"
        )
    share = f" ({figure.value / limit * 100:.0f} %)" if limit else ""
    if "ttft_ms" in detail:
        return f"{figure.value:.0f}{share}, TTFT {detail['ttft_ms']:.0f} ms"
    if "step_ms" in detail:
        return f"{figure.value:.1f}{share}, step {detail['step_ms']:.1f} ms"
    return f"{figure.value:.1f}"

"""One line of a table of times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def row(name: str, values_s: Sequence[float], note: str = "") -> None:
    """Print P50, P99 and count of `values_s` (seconds) in milliseconds."""
    cuts = statistics.quantiles(values_s, n=100)
    print(f"  {name:<30} p50 {cuts[49] * 1e3:8.2f} ms   p99 {cuts[98] * 1e3:8.2f} ms   n {len(values_s):6d}   {note}")

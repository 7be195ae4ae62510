"""What is certain of a comparison between two role mixes, given how well the demand is known. Pure.

An estimate from few arrivals may be right enough to act on, or far too uncertain: it depends on what is compared. So
the mixes are compared at the corners of what the demand may be, one standard error to each side of the mean prompt and
the mean output; where one mix is better at all of them, waiting for a better estimate would only let a queue grow.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from contracts.phase import Layout
from scheduling.fleet_capacity import Site, role_rates, within
from scheduling.fleet_mixes import Mix, carried
from scheduling.fleet_workload import Demand


def certain_gain(present: Mix, other: Mix, demand: Demand, site: Site, layout: Layout | None) -> float:
    """By which factor the other mix carries more than the present one, at the corner where it gains the least."""
    gains = []
    for corner in corners(demand):
        rates = within(role_rates(corner, site), layout)
        now, then = carried(present, rates), carried(other, rates)
        gains.append(then / now if now > 0.0 else float("inf") if then > 0.0 else 0.0)
    return min(gains)


def certain_rate(demand: Demand) -> float:
    """Sequences per second that arrive at least, one standard error below the mean."""
    return demand.rate * max(0.0, 1.0 - demand.errors.rate)


def corners(demand: Demand) -> Iterator[Demand]:
    """Shorter and longer prompts with shorter and longer outputs."""
    for prompt in (1.0 / (1.0 + demand.errors.prompt), 1.0 + demand.errors.prompt):
        for output in (1.0 / (1.0 + demand.errors.output), 1.0 + demand.errors.output):
            yield msgspec.structs.replace(
                demand,
                prompt_tokens=demand.prompt_tokens * prompt,
                long_prompt_tokens=demand.long_prompt_tokens * prompt,
                sent_tokens=demand.sent_tokens * prompt,
                output_tokens=demand.output_tokens * output,
            )

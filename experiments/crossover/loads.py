"""What is asked for: the length mixes and targets that EcoServe (OSDI'26) prints, and one of them tightened."""

from __future__ import annotations

import math

import msgspec

from contracts.request import Slo
from scheduling.fleet_workload import LONG_PROMPT, Demand
from simulator import scenarios
from simulator.lengths import LogNormal


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and outputs in tokens, and the targets."""

    name: str
    prompt: LogNormal
    output: LogNormal
    slo: Slo

    def within(self, max_context: int) -> Load:
        """With lengths that a model of this context can serve: inputs are truncated, as EcoServe did."""
        prompt_most = min(self.prompt.most, max_context * 3 // 4)
        output_most = min(self.output.most, max_context - prompt_most)
        return msgspec.structs.replace(
            self, prompt=_cut(self.prompt, prompt_most), output=_cut(self.output, output_most)
        )

    @property
    def demand(self) -> Demand:
        """As the planner's closed forms want it."""
        mean, spread = _moments(self.prompt)
        return demand_of(mean, spread, _moments(self.output)[0], self.slo)


LOADS = (
    Load(
        name="Alpaca",
        prompt=scenarios.ALPACA_PROMPT,
        output=scenarios.ALPACA_OUTPUT,
        slo=Slo(ttft_s=1.0, tpot_s=0.1),
    ),
    Load(
        name="ShareGPT",
        prompt=scenarios.SHAREGPT_PROMPT,
        output=scenarios.SHAREGPT_OUTPUT,
        slo=Slo(ttft_s=5.0, tpot_s=0.1),
    ),
    Load(
        name="ShareGPT tight",
        prompt=scenarios.SHAREGPT_PROMPT,
        output=scenarios.SHAREGPT_OUTPUT,
        slo=Slo(ttft_s=2.0, tpot_s=0.05),
    ),
    Load(
        name="LongBench",
        prompt=scenarios.LONGBENCH_PROMPT,
        output=scenarios.LONGBENCH_OUTPUT,
        slo=Slo(ttft_s=15.0, tpot_s=0.1),
    ),
)


def demand_of(prompt_tokens: float, spread_tokens: float, output_tokens: float, slo: Slo) -> Demand:
    """One request a second with prompts of this mean and standard deviation, of which nothing is cached. What a long
    prompt is, as `scheduling.fleet_workload` has it."""
    return Demand(
        rate=1.0,
        prompt_tokens=prompt_tokens,
        long_prompt_tokens=min(LONG_PROMPT * prompt_tokens, prompt_tokens + 1.3 * spread_tokens),
        sent_tokens=prompt_tokens,
        output_tokens=output_tokens,
        slo=slo,
    )


def _cut(lengths: LogNormal, most: int) -> LogNormal:
    return msgspec.structs.replace(lengths, most=max(1, most))


def _moments(lengths: LogNormal) -> tuple[float, float]:
    """Mean and standard deviation of min(X, most) for a lognormal X."""
    mu, sigma = math.log(lengths.median), math.sqrt(2.0 * math.log(lengths.mean / lengths.median))
    if sigma == 0.0:
        return min(lengths.median, float(lengths.most)), 0.0
    at = (math.log(lengths.most) - mu) / sigma
    over = 1.0 - _normal(at)
    first = lengths.mean * _normal(at - sigma) + lengths.most * over
    square = math.exp(2.0 * mu + 2.0 * sigma * sigma) * _normal(at - 2.0 * sigma) + lengths.most**2 * over
    return first, math.sqrt(max(0.0, square - first * first))


def _normal(at: float) -> float:
    return 0.5 * math.erfc(-at / math.sqrt(2.0))

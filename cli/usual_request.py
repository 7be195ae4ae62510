"""What one request of a simulated workload is like in the mean, and whether a replica has room for it at all."""

from __future__ import annotations

from itertools import islice

import msgspec

from contracts.errors import ConfigError
from simulator.lengths import Constant, Empirical, Lengths, LogNormal, Uniform
from simulator.scenario import Group, Scenario
from simulator.workload import Workload

LOOKED_AT = 1000
"""So many requests of a trace."""


class UsualRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Mean tokens of a prompt and of an answer. `asked`: how long its client lets the answer become, of a trace no less
    than the answer."""

    prompt: float
    answer: float
    asked: float


def usual_request(workload: Workload) -> UsualRequest:
    """From the distributions, or from the first requests of the trace. Raises `ConfigError` for one that cannot be
    read."""
    if workload.trace is None:
        prompt, answer = _mean(workload.prompt), _mean(workload.output)
        asked = float(workload.max_tokens or workload.output.longest)
    else:
        rows = list(islice(msgspec.structs.replace(workload.trace, repeat=False).rows(), LOOKED_AT))
        prompt, answer = (
            sum(getattr(row, name) for row in rows) / len(rows) for name in ("prompt_tokens", "output_tokens")
        )
        asked = float(workload.max_tokens or answer)
    if workload.max_prompt:
        prompt = min(prompt, workload.max_prompt)
    return UsualRequest(prompt=prompt, answer=min(answer, asked), asked=asked)


def check_room(scenario: Scenario) -> None:
    """Raises `ConfigError` when no replica of the fleet would take the usual request, however empty it is: nearly all
    would be refused, and the report would be one of nothing."""
    usual = usual_request(scenario.workload)
    roomy = max(scenario.fleet, key=_room)
    if usual.prompt + usual.asked <= _room(roomy):
        return
    context = roomy.max_context < roomy.num_blocks * roomy.kv.block_size
    raise ConfigError(
        f"no replica has room for a request of this workload: a prompt of {usual.prompt:.0f} tokens (mean) and an"
        f" answer of up to {usual.asked:.0f} are {usual.prompt + usual.asked:.0f} tokens, a replica takes"
        f" {_room(roomy)}, {'the context of its model' if context else 'all that its KV has room for'}; name other"
        " --data, --model, --hardware or --tp, or bound the answers: --set simulate.workload.max_tokens=N",
        param="fleet",
    )


def _room(group: Group) -> int:
    """Tokens of prompt and answer. The answer's last token leaves no KV."""
    return min(group.max_context, group.num_blocks * group.kv.block_size + 1)


def _mean(lengths: Lengths) -> float:
    match lengths:
        case Constant(tokens=tokens):
            return float(tokens)
        case Uniform(low=low, high=high):
            return (low + high) / 2.0
        case LogNormal(mean=mean, most=most):
            return min(mean, float(most))
        case Empirical(values=values):
            return sum(values) / len(values)

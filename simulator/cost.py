"""How long a step takes: cost models as settings, and the random but repeatable spread around them.

A model of another kind is one more struct with a `tag` and the method of `StepTimes`, added to `CostModel`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from random import Random
from typing import Protocol

import msgspec

from contracts.errors import ConfigError
from contracts.views import StepCost
from scheduling.profile_plan import fit_step_cost
from scheduling.step_shape import StepShape
from simulator.bounds import LONGEST_STEP_S, bound_all
from simulator.lengths import MOST_TOKENS
from simulator.roofline import Roofline

_GRID = ((1, 0), (16, 0), (128, 0), (512, 0), (2048, 0), (512, 2048), (2048, 8192), (128, 16384))
_ROWS = (1, 4, 16, 64, 256)
_CONTEXTS = (64, 512, 4096)


class StepTimes(Protocol):
    """What a simulated engine asks."""

    def step_s(self, shape: StepShape) -> float:
        """The duration of one step in seconds, without spread. Never negative; more work never takes less."""
        ...


class Fitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fitted", tag_field="kind"):
    """The formula of `scheduling.step_cost`, the coefficients in seconds (as in `contracts.views.StepCost`)."""

    a0: float
    a1: float
    b0: float = 0.0
    b1: float = 0.0
    b2: float = 0.0
    b3: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the coefficient."""
        bound_all(self, "cost.", *self.__struct_fields__, most=LONGEST_STEP_S)
        if self.a0 + self.a1 <= 0.0:
            raise ConfigError("cost.a0 and cost.a1 are both zero: no step would take time", param="cost.a1")

    def step_s(self, shape: StepShape) -> float:
        """See `StepTimes`."""
        return (
            self.a0
            + self.a1 * shape.tokens
            + self.b0 * shape.past_chunk
            + self.b1 * shape.chunk_sq
            + self.b2 * shape.decode_context
            + self.b3 * shape.decodes
        )


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="table", tag_field="kind"):
    """Measured steps: `(tokens, seconds)` in order of tokens, in between straight lines, beyond the last one its slope.

    `context_s` is added for each token of context that decode rows and chunks read, `pair_s` for each pair of a chunk's
    token and a token that it attends to.
    """

    points: tuple[tuple[int, float], ...]
    context_s: float = 0.0
    pair_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError` unless both columns grow."""
        if len(self.points) < 2 or any(
            not (0 <= early[0] < late[0] <= MOST_TOKENS and 0.0 < early[1] <= late[1] <= LONGEST_STEP_S)
            for early, late in zip(self.points, self.points[1:], strict=False)
        ):
            raise ConfigError(
                f"cost.points needs two points or more, with growing tokens, up to {MOST_TOKENS:,}, and seconds, up to"
                f" {LONGEST_STEP_S:g}",
                param="cost",
            )
        bound_all(self, "cost.", "context_s", "pair_s", most=LONGEST_STEP_S)

    def step_s(self, shape: StepShape) -> float:
        """See `StepTimes`."""
        index = min(max(1, bisect_right(self.points, (shape.tokens, math.inf))), len(self.points) - 1)
        (few, short_s), (many, long_s) = self.points[index - 1], self.points[index]
        along = (shape.tokens - few) / (many - few)
        attended_s = self.context_s * (shape.decode_context + shape.past)
        attended_s += self.pair_s * (shape.past_chunk + 0.5 * shape.chunk_sq)
        return max(self.points[0][1], short_s + along * (long_s - short_s)) + attended_s


class Apart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="apart", tag_field="kind"):
    """A model of whose mixed steps the decode part is paid `share` of what it takes alone, on top of the prefill part.

    The others let decodes ride in a chunk, so that a mixed step reads the weights once. How much of that real kernels
    reach decides whether chunks beside decodes beat phases: 1 is nothing of it (one after the other).
    """

    of: Fitted | Roofline | Table
    share: float = 1.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        bound_all(self, "cost.", "share", most=1.0)

    def step_s(self, shape: StepShape) -> float:
        """See `StepTimes`."""
        if not 0 < shape.decodes < shape.tokens:
            return self.of.step_s(shape)
        decodes, prompts = StepShape(), StepShape()
        decodes.add_decodes(shape.decodes, shape.decode_context)
        prompts.tokens = shape.tokens - shape.decodes
        prompts.past, prompts.past_chunk, prompts.chunk_sq = shape.past, shape.past_chunk, shape.chunk_sq
        return max(self.of.step_s(shape), self.of.step_s(prompts) + self.share * self.of.step_s(decodes))


CostModel = Fitted | Roofline | Table | Apart


def check_duration(model: CostModel | None, where: str) -> None:
    """Raises `ConfigError` where even a step of one token takes longer than anybody would wait for, or no time."""
    one = StepShape()
    one.add_decodes(1, 1)
    step_s = LONGEST_STEP_S if model is None else model.step_s(one)
    if not 0.0 < step_s <= LONGEST_STEP_S:
        raise ConfigError(
            f"{where}: a step of one token takes {step_s:g} s: it must take some time, at most {LONGEST_STEP_S:g} s",
            param=where,
        )


def profile_of(times: StepTimes) -> StepCost:
    """The coefficients of `Fitted` that fit a model best over a grid of steps, by relative error."""
    shapes = []
    for chunk, past in _GRID:
        shape = StepShape()
        shape.add_prefill(past, chunk)
        shapes.append(shape)
    for rows in _ROWS:
        for context in _CONTEXTS:
            shape = StepShape()
            shape.add_decodes(rows, rows * context)
            shapes.append(shape)
    return fit_step_cost([(shape, times.step_s(shape)) for shape in shapes])


def believed_of(model: CostModel) -> StepCost:
    """About what a profile at load finds (`scheduling.profile_plan`), over a wider grid of steps: the start value of a
    core's predictor."""
    if isinstance(model, Fitted):
        return StepCost(a0=model.a0, a1=model.a1, b0=model.b0, b1=model.b1, b2=model.b2, b3=model.b3)
    return profile_of(_OneStage(model) if num_stages(model) > 1 else model)


def num_stages(model: CostModel) -> int:
    """Stages of a pipeline, each of which works on another step; 1 without one."""
    return model.pp if isinstance(model, Roofline) else 1


class _OneStage:
    """What a step takes of the stage that it takes longest in: so often a pipeline can do it."""

    def __init__(self, model: CostModel) -> None:
        assert isinstance(model, Roofline)
        self._model = model

    def step_s(self, shape: StepShape) -> float:
        return max(self._model.stage_times_s(shape))


class NoisySteps:
    """A model's durations with a lognormal spread of mean 1. `noise`: the standard deviation of the logarithm."""

    __slots__ = ("_kept", "_model", "_mu", "_noise", "_random", "num_stages")

    def __init__(self, model: CostModel, noise: float, random: Random) -> None:
        self._model = model
        self.num_stages = num_stages(model)
        self._noise = noise
        self._mu = -noise * noise / 2
        self._random = random
        self._kept: list[float] = []

    def step_s(self, shape: StepShape) -> float:
        """The duration of the next step in seconds."""
        return self._model.step_s(shape) * self._spread()

    def steps_s(self, shape: StepShape, count: int) -> tuple[list[float], list[float]]:
        """Durations of the next step and of those after it in which each of its decode rows has one token more; and
        the spread of each. Those that are not run after all have to be given back."""
        step_s, rows, context = self._model.step_s, shape.decodes, shape.decode_context
        spreads = self._spreads(count)
        durations = []
        for spread in spreads:
            durations.append(step_s(shape) * spread)
            shape.decode_context += rows
        shape.decode_context = context
        return durations, spreads

    def give_back(self, spreads: list[float]) -> None:
        """These were the last drawn; they are the next to be."""
        if self._noise > 0.0:
            self._kept += reversed(spreads)

    def _spreads(self, count: int) -> list[float]:
        if self._noise <= 0.0:
            return [1.0] * count
        kept, draw, mu, noise = self._kept, self._random.lognormvariate, self._mu, self._noise
        return [kept.pop() if kept else draw(mu, noise) for _ in range(count)]

    def _spread(self) -> float:
        if self._noise <= 0.0:
            return 1.0
        return self._kept.pop() if self._kept else self._random.lognormvariate(self._mu, self._noise)

    def stage_times_s(self, shape: StepShape) -> tuple[tuple[float, ...], float]:
        """How long the next step takes in each stage of a pipeline, and its activations from one to the next."""
        model, noise = self._model, self._noise
        assert isinstance(model, Roofline)
        times = model.stage_times_s(shape)
        if noise > 0.0:
            times = tuple([time * self._random.lognormvariate(self._mu, noise) for time in times])
        return times, model.hop_s(shape)

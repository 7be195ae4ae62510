"""Replicas that share the cores of one machine: a step takes longer while another one computes too."""

from __future__ import annotations

from typing import Protocol

from scheduling.step_shape import StepShape
from simulator.clock import Clock


class Steps(Protocol):
    """How long the next step takes, spread included."""

    def step_s(self, shape: StepShape) -> float:
        """In seconds."""
        ...


class SharedCores:
    """Who computes until when on one machine."""

    __slots__ = ("_clock", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[object, float] = {}

    def crowded(self, who: object) -> bool:
        """Whether anybody else computes now."""
        now = self._clock.now
        return any(until > now for other, until in self._until.items() if other is not who)

    def computes(self, who: object, duration_s: float) -> None:
        """From now on, for so long."""
        self._until[who] = self._clock.now + duration_s


class CrowdedSteps:
    """Steps as `alone` says, or as `crowded` says when another replica of the machine computes as the step begins. A
    step is short beside the times for which replicas are busy, so that its begin stands for the whole of it."""

    __slots__ = ("_alone", "_cores", "_crowded")

    def __init__(self, alone: Steps, crowded: Steps, cores: SharedCores) -> None:
        self._alone = alone
        self._crowded = crowded
        self._cores = cores

    def step_s(self, shape: StepShape) -> float:
        """The duration of the next step in seconds. It counts as begun."""
        steps = self._crowded if self._cores.crowded(self) else self._alone
        duration_s = steps.step_s(shape)
        self._cores.computes(self, duration_s)
        return duration_s

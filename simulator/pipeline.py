"""A pipeline of stages: when a batch gets through, and how long stages stood still because batches differ (bubbles).

A stage begins a batch when the stage before has done with it, its activations have come over, and the stage itself has
done with the batch before. So a stage that gets batches of unequal length stands still now and then though there is
work: the bubbles of "Revisiting Pipeline Parallelism for LLM Serving" (Hwang and Ahn, OSDI'26), told apart as there by
what the two batches around a bubble hold.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class Bubbles:
    """Stage-seconds in which a stage stood still between two batches, by kind.

    `p_p`: both hold prompt tokens; `p_d`: one of them does; `d_d`: neither does. The time that activations take from
    stage to stage is in them where nothing hides it. `starved`: fewer batches than stages were in flight, so there was
    not enough to do; the time in which nothing at all was in flight does not count.
    """

    p_p: float = 0.0
    p_d: float = 0.0
    d_d: float = 0.0
    starved: float = 0.0


class Pipeline:
    """Batches go in in order and come out in order; each is taken in by the first stage as soon as it is free."""

    __slots__ = ("_free_at", "_had_prefill", "_landings", "bubbles", "num_stages")

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages
        self.bubbles = Bubbles()
        self._free_at = [0.0] * num_stages
        self._had_prefill: bool | None = None
        self._landings: deque[float] = deque()

    def enter(self, now: float, stage_s: tuple[float, ...], hop_s: float, *, has_prefill: bool) -> float:
        """The time at which a batch that is given in now has left the last stage.

        `stage_s`: how long each stage takes for it; `hop_s`: for its activations from one stage to the next.
        """
        free_at, landings = self._free_at, self._landings
        last_landing = landings[-1] if landings else now
        while landings and landings[0] <= now:
            landings.popleft()
        idle_s = max(0.0, now - last_landing)  # with nothing in flight
        full = len(landings) + 1 >= len(free_at)
        ready = now
        for stage, takes_s in enumerate(stage_s):
            begin = max(ready, free_at[stage])
            if self._had_prefill is not None:
                self._count(begin - free_at[stage] - idle_s, has_prefill, full=full)
            free_at[stage] = begin + takes_s
            ready = free_at[stage] + hop_s
        landings.append(free_at[-1])
        self._had_prefill = has_prefill
        return free_at[-1]

    def _count(self, gap_s: float, has_prefill: bool, *, full: bool) -> None:
        if gap_s <= 0.0:
            return
        bubbles, before = self.bubbles, bool(self._had_prefill)
        if not full:
            bubbles.starved += gap_s
        elif before and has_prefill:
            bubbles.p_p += gap_s
        elif before or has_prefill:
            bubbles.p_d += gap_s
        else:
            bubbles.d_d += gap_s

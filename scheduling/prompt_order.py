"""In which order prompts are prefilled: Moore-Hodgson by TTFT deadline, within priority raised by age.

Moore-Hodgson (as in Prism, OSDI'26, Algorithm 2) maximises the number of first tokens that are on time: take prompts
in deadline order; whenever the last one taken would be late, drop the longest taken so far. Dropped prompts follow the
others and stay queued; ageing raises them by one priority level each `aged_after` TTFT targets, so none starves.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq

from scheduling.config import ReplicaCoreConfig
from scheduling.sequence import Sequence, Status


def moore_hodgson(jobs: Seq[tuple[float, float]], start: float) -> tuple[list[int], list[int]]:
    """Indices of `(deadline, duration_s)` jobs that can be on time, in deadline order, and of the dropped, likewise."""
    order = sorted(range(len(jobs)), key=[deadline for deadline, _ in jobs].__getitem__)
    longest: list[tuple[float, int]] = []
    dropped: set[int] = set()
    end = start
    for index in order:
        deadline, duration = jobs[index]
        end += duration
        if dropped:
            heapq.heappush(longest, (-duration, index))
        else:  # no heap before something has to be dropped
            longest.append((-duration, index))
        if end > deadline:
            if not dropped:
                heapq.heapify(longest)
            minus_duration, victim = heapq.heappop(longest)
            end += minus_duration
            dropped.add(victim)
    if not dropped:
        return order, []
    return [i for i in order if i not in dropped], [i for i in order if i in dropped]


def level_of(sequence: Sequence, config: ReplicaCoreConfig, now: float) -> int:
    """Effective priority: the request's own, plus one for every `aged_after` TTFT targets it has waited."""
    return sequence.priority + int(sequence.age_s(now) / (config.aged_after * max(sequence.request.slo.ttft_s, 1e-3)))


def order_prompts(
    prompts: Seq[Sequence], durations_s: Seq[float], config: ReplicaCoreConfig, now: float
) -> list[Sequence]:
    """The order of service: level by level Moore-Hodgson. Preempted ones, and those whose output was begun elsewhere,
    come before all that did not run yet, but for those of strictly higher priority, which they may have been preempted
    for; the oldest first. A reader waits for them in the middle of a text, and their TTFT deadline has passed."""
    if len(prompts) == 1:
        return list(prompts)
    preempted: list[Sequence] = []
    levels: dict[int, list[int]] = {}
    again = Status.PREEMPTED
    for index, sequence in enumerate(prompts):
        if sequence.status is again or sequence.request.output_token_ids:
            preempted.append(sequence)
        else:
            levels.setdefault(level_of(sequence, config, now), []).append(index)
    preempted.sort(key=lambda s: (-s.priority, s.arrived_at))
    ordered: list[Sequence] = []
    start = now
    for level in sorted(levels, reverse=True):
        members = levels[level]
        if preempted:
            lowest = min(prompts[i].priority for i in members)
            ordered += [s for s in preempted if s.priority >= lowest]
            preempted = [s for s in preempted if s.priority < lowest]
        jobs = [(prompts[i].ttft_deadline, durations_s[i]) for i in members]
        on_time, dropped = moore_hodgson(jobs, start)
        ordered += [prompts[members[i]] for i in on_time + dropped]
        start += sum([durations_s[i] for i in members])
    return ordered + preempted

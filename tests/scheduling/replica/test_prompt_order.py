"""Moore-Hodgson against brute force, and what priority and age add to it."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from contracts.request import Request, SamplingParams, Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.prompt_order import moore_hodgson, order_prompts
from scheduling.sequence import Sequence, Status

jobs_lists = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=6)


def late(order: list[int], jobs: list[tuple[float, float]], start: float = 0.0) -> int:
    count, end = 0, start
    for index in order:
        end += jobs[index][1]
        count += end > jobs[index][0]
    return count


@given(jobs_lists)
def test_no_order_has_fewer_late_prompts(jobs: list[tuple[float, float]]) -> None:
    on_time, dropped = moore_hodgson(jobs, 0.0)
    assert sorted(on_time + dropped) == list(range(len(jobs)))
    assert late(on_time, jobs) == 0
    assert late(on_time + dropped, jobs) == min(late(list(order), jobs) for order in permutations(range(len(jobs))))


def test_first_come_and_earliest_deadline_are_worse_on_a_long_job() -> None:
    jobs = [(10.0, 11.0), (12.0, 2.0), (13.0, 2.0), (14.0, 2.0)]
    on_time, dropped = moore_hodgson(jobs, 0.0)
    assert (on_time, dropped) == ([1, 2, 3], [0])
    assert late([0, 1, 2, 3], jobs) == 4


def sequence(
    name: str, arrived_at: float = 0.0, *, ttft_s: float = 1.0, priority: int = 0, output: tuple[int, ...] = ()
) -> Sequence:
    request = Request(
        request_id=name,
        prompt_token_ids=(1,),
        sampling=SamplingParams(),
        slo=Slo(ttft_s=ttft_s),
        priority=priority,
        output_token_ids=output,
    )
    return Sequence(request, arrived_at, 16, frozenset())


def names(prompts: list[Sequence], durations: list[float], now: float) -> list[str]:
    return [s.request_id for s in order_prompts(prompts, durations, ReplicaCoreConfig(), now)]


def test_who_was_begun_elsewhere_does_not_wait_for_new_prompts() -> None:
    prompts = [sequence("new", 9.0), sequence("broken off", 0.0, output=(1, 2)), sequence("first", 9.0, priority=1)]
    assert names(prompts, [0.1, 0.4, 0.1], 9.0) == ["first", "broken off", "new"]


def test_priority_goes_before_deadlines() -> None:
    prompts = [sequence("a"), sequence("b", ttft_s=0.5), sequence("c", priority=1, ttft_s=9.0)]
    assert names(prompts, [0.1, 0.1, 0.1], 0.0) == ["c", "b", "a"]


def test_the_lower_levels_wait_for_the_time_of_the_higher_ones() -> None:
    prompts = [sequence("long"), sequence("short"), sequence("high", priority=1)]
    assert names(prompts, [0.6, 0.3, 0.6], 0.0) == ["high", "short", "long"]  # only 0.4 s is left for the low ones


def test_a_dropped_prompt_stays_behind_until_age_lifts_it() -> None:
    old, fresh = sequence("old", 0.0), sequence("fresh", 3.5)
    assert names([old, fresh], [0.5, 0.5], 3.5) == ["fresh", "old"]  # already late: it must not make "fresh" late too
    fresh = sequence("fresh", 4.0)
    assert names([old, fresh], [0.5, 0.5], 4.0) == ["old", "fresh"]  # four TTFT targets old: one level up


def test_waiting_before_arrival_counts() -> None:
    request = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(), waited_s=3.0)
    waited = Sequence(request, 10.0, 16, frozenset())
    assert waited.ttft_deadline == 10.0 - 3.0 + Slo().ttft_s
    assert waited.age_s(11.0) == 4.0


def test_a_preempted_sequence_goes_first_but_for_strictly_higher_priorities() -> None:
    preempted, high, equal = sequence("p", 2.0), sequence("h", priority=9), sequence("e")
    preempted.move_to(Status.PREFILLING, 2.0)
    preempted.move_to(Status.PREEMPTED, 3.0)
    assert names([high, equal, preempted], [0.1, 0.1, 5.0], 3.0) == ["h", "p", "e"]
    # Age raises the equal one above the high one: it does not overtake what ran already for that.
    high.arrived_at = 1e4
    assert names([high, equal, preempted], [0.1, 0.1, 5.0], 1e4) == ["p", "e", "h"]

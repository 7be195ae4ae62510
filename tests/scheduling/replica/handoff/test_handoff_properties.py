"""Random lives of a pair: what is lost, late, said twice or cancelled: every request ends once, nothing stays."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.phase import Role
from contracts.replica_io import (
    ClientGone,
    KVArriving,
    KVLost,
    KVSendFailed,
    LeaseGranted,
    LinkDown,
    LinkUp,
    RoleAssigned,
)
from contracts.request import SamplingParams, Slo
from contracts.views import StepCost
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_core import ReplicaCore

configs = st.builds(
    ReplicaCoreConfig,
    max_running=st.sampled_from([1, 2, 64]),
    max_waiting=st.sampled_from([3, 30]),
    max_receiving=st.sampled_from([1, 3, 16]),
    pipeline_depth=st.sampled_from([1, 1, 2, 4]),
    min_chunk=st.just(1),
    max_chunk=st.sampled_from([4, 7, 32]),
    chunk_multiple=st.sampled_from([1, 4]),
    prefix_cache=st.booleans(),
    output_reserve_quantile=st.sampled_from([0.0, 0.5]),
    max_preemptions=st.sampled_from([0, 1, 3]),
    overdue_after=st.sampled_from([0.1, 1.0]),
)
labs = st.fixed_dictionaries(
    {
        "role": st.sampled_from(list(Role)),
        "num_blocks": st.sampled_from([8, 16, 64]),
        "config": configs,
    }
)
index = st.integers(0, 6)
arrivals = st.tuples(
    st.sampled_from(["handed over", "handed over", "handed over", "at p", "at d"]),
    st.integers(1, 24),  # prompt tokens
    st.integers(0, 2),  # family: prompts of one family share their beginning
    st.sampled_from([1, 2, 5, 6, 20]),  # max_tokens
    st.sampled_from([0, 0, 0, 2]),  # of these made elsewhere already
    st.sampled_from([None, 0]),  # prompt_logprobs
    st.sampled_from([0.05, 4.0]),  # TTFT target
)
moves = st.one_of(
    st.tuples(st.just("step p")),
    st.tuples(st.just("step d")),
    st.tuples(st.just("deliver"), index),
    st.tuples(st.just("deliver"), st.just(0)),
)
faults = st.one_of(
    st.tuples(st.sampled_from(["cancel p", "cancel d", "repeat", "lose", "lost", "send failed", "arriving"]), index),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 1.0, 40.0])),
    st.tuples(st.sampled_from(["row fails", "step fails", "link down", "lease"])),
    st.tuples(st.sampled_from(["role p", "role d"]), st.sampled_from(list(Role))),
)
lives = st.lists(
    st.one_of(arrivals, arrivals, arrivals, arrivals, moves, moves, moves, moves, faults), min_size=15, max_size=90
)


class Life:
    """Performs drawn operations on a pair."""

    def __init__(self, pair: Any) -> None:
        self.pair = pair
        self.count = 0

    def perform(self, operation: tuple[Any, ...]) -> None:
        pair = self.pair
        match operation:
            case ("handed over" | "at p" | "at d", prompt, family, max_tokens, made, logprobs, ttft_s):
                self.arrive(operation[0], prompt, family, max_tokens, min(made, max_tokens - 1), logprobs, ttft_s)
            case ("role p", role):
                pair.send(pair.p, RoleAssigned(role))
            case ("role d", role):
                pair.send(pair.d, RoleAssigned(role))
            case ("step p",):
                pair.step(pair.p)
            case ("step d",):
                pair.step(pair.d)
            case ("deliver", number):
                pair.deliver(number)
            case ("lose", number):
                pair.lose(number)
            case ("repeat", number):
                pair.repeat(number)
            case ("cancel p", number):
                pair.send(pair.p, ClientGone(self.one(number)))
            case ("cancel d", number):
                pair.send(pair.d, ClientGone(self.one(number)))
            case ("lost", number):
                pair.send(pair.d, KVLost(self.one(number), "a layer is missing", corrupt=number % 2 == 0))
            case ("send failed", number):
                pair.send(pair.p, KVSendFailed(self.one(number), "the connection broke"))
            case ("arriving", number):
                pair.send(pair.d, KVArriving(self.one(number), number * 1000, number * 100.0, number / 10.0))
            case ("wait", duration_s):
                pair.wait(duration_s)
            case ("lease",):
                pair.send(pair.p, LeaseGranted(5.0))
            case ("row fails",):
                pair.p.engine.fail_rows_on(lambda chunk: hash(chunk.token_ids) % 2 == 0)
                pair.step(pair.p)
                pair.p.engine.fail_rows_on(None)
            case ("step fails",):
                pair.p.engine.fail_on(lambda _: True)
                pair.step(pair.p)
                pair.p.engine.fail_on(None)
            case ("link down",):
                pair.send(pair.p, LinkDown("d", "d1", "cable pulled"))
                pair.send(pair.p, LinkUp("d", "d1", "tcp", "eth0", 1e-4))

    def one(self, number: int) -> str:
        """Some request, most often one of the latest."""
        return f"r{max(1, self.count - number)}"

    def arrive(
        self, where: str, prompt: int, family: int, max_tokens: int, made: int, logprobs: int | None, ttft_s: float
    ) -> None:
        pair = self.pair
        self.count += 1
        name = f"r{self.count}"
        tokens = tuple(3 + (family * 17 + i * i) % 50 for i in range(prompt))
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=logprobs, ignore_eos=True)
        output = pair.right_output(tokens, sampling, made)
        rest = {"sampling": sampling, "output": output, "slo": Slo(ttft_s=ttft_s)}
        if where == "handed over":
            pair.arrive(name, tokens, **rest)
        else:
            (pair.p if where == "at p" else pair.d).arrive(name, tokens, **rest)
            pair.work()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(p=labs, d=labs, block_size=st.sampled_from([1, 4]), life=lives)
def test_any_life_of_a_pair_ends_well(
    pair_lab: Any, p: dict[str, Any], d: dict[str, Any], block_size: int, life: list[Any]
) -> None:
    pair = pair_lab({**p, "block_size": block_size}, {**d, "block_size": block_size})
    doings = Life(pair)
    for operation in life:
        doings.perform(operation)
    pair.finish()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(p=labs, d=labs, life=lives)
def test_same_events_same_actions(
    pair_lab: Any, lab_cost: StepCost, p: dict[str, Any], d: dict[str, Any], life: list[Any]
) -> None:
    pair = pair_lab(p, d)
    heard: dict[str, list[Any]] = {"p": [], "d": []}
    said: dict[str, list[Any]] = {"p": [], "d": []}
    for name, lab in (("p", pair.p), ("d", pair.d)):

        def record(event: Any, now: float, name: str = name, handle: Any = lab.core.handle) -> Any:
            heard[name].append((event, now))
            said[name].append(handle(event, now))
            return said[name][-1]

        lab.core.handle = record
    doings = Life(pair)
    for operation in life:
        doings.perform(operation)
    pair.settle()
    for name, lab, setup in (("p", pair.p, p), ("d", pair.d, d)):
        twin = ReplicaCore(
            setup["config"], setup["role"], lab.layout, setup["num_blocks"], 1024, lab.spec.eos_token_ids, lab_cost
        )
        assert [twin.handle(event, now) for event, now in heard[name]] == said[name]

"""All twelve changes of role, with a sequence in every state there is: nothing is lost, nothing is said differently."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from contracts.phase import Role
from contracts.replica_io import LeaseGranted, RoleAssigned
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.sequence import Status

PAIRS = list(itertools.permutations(Role, 2))
CALM = Slo(ttft_s=60.0, tpot_s=5.0)
CONFIG = ReplicaCoreConfig(min_chunk=4, max_chunk=8, chunk_multiple=4)


def small(role: Role) -> dict[str, Any]:
    """A lab's settings."""
    return {"role": role, "config": CONFIG, "num_blocks": 64}


def busy_pair(pair_lab: Any, role: Role, side: str, leased: bool) -> Any:
    """Both replicas with work in every state that theirs can have. `side` is the one whose role is to change."""
    roles = {"p": Role.PREFILL, "d": Role.DECODE} | {side: role}
    pair = pair_lab(small(roles["p"]), small(roles["d"]))
    changing = pair.p if side == "p" else pair.d
    if leased:
        pair.send(changing, LeaseGranted(30.0))
    changing.arrive("stream", 6, 40, slo=CALM)
    while changing.core.state.sequences["stream"].status is not Status.DECODING:
        pair.step(changing)
    for name in ("received", "on its way", "waits for its ticket"):
        pair.arrive(name, 20, 12, slo=CALM)
        pair.deliver()
    changing.arrive("whole", 30, 10, slo=CALM)
    pair.step(pair.p)
    pair.step(pair.p)
    return pair


@pytest.mark.parametrize("leased", [False, True], ids=["without lease", "with lease"])
@pytest.mark.parametrize("side", ["p", "d"])
@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_whatever_is_under_way_ends_as_without_the_change(
    pair_lab: Any, before: Role, after: Role, side: str, leased: bool
) -> None:
    pair = busy_pair(pair_lab, before, side, leased)
    changing = pair.p if side == "p" else pair.d
    pair.send(changing, RoleAssigned(after))
    assert changing.core.state.role is after
    seen = {sequence.status for sequence in changing.core.state.sequences.values()}
    assert len(seen) > 1, seen
    pair.finish()
    for name in ("received", "on its way", "waits for its ticket"):
        assert pair.d.got[name].error is None
        assert len(pair.d.got[name].tokens) == 12
    assert len(changing.got["stream"].tokens) == 40
    assert len(changing.got["whole"].tokens) == 10


@pytest.mark.parametrize("after", [role for role in Role if role is not Role.PREFILL])
def test_legs_that_wait_are_computed_and_sent_under_any_role(pair_lab: Any, after: Role) -> None:
    pair = pair_lab(small(Role.PREFILL), small(Role.DECODE))
    for index in range(4):
        pair.arrive(f"leg{index}", 24, 6, slo=CALM)
    while pair.queue:
        pair.deliver()
    pair.send(pair.p, RoleAssigned(after))
    pair.finish()
    assert pair.p.core.state.counters.handoffs_out == 4
    assert pair.d.core.state.counters.handoffs_in == 4


def test_a_leg_whose_ticket_comes_after_the_change_is_sent_all_the_same(pair_lab: Any) -> None:
    """Under the alternating role it needs no lease of the macro instance: its receiver holds blocks for it."""
    pair = pair_lab(small(Role.PREFILL), small(Role.DECODE))
    pair.p.arrive("stream", 6, 200, slo=CALM)
    pair.step(pair.p)
    pair.arrive("leg", 24, 6, slo=CALM)
    pair.send(pair.p, RoleAssigned(Role.ALTERNATING))
    began = pair.p.now
    while pair.queue:
        pair.deliver()
    while pair.p.core.state.counters.handoffs_out == 0:
        assert pair.deliver() or pair.step(pair.p)
    assert pair.p.now - began < 2.0
    pair.finish()


def test_a_decode_leg_that_a_prefill_replica_still_gets_is_guarded(pair_lab: Any) -> None:
    tight = Slo(ttft_s=4.0, tpot_s=0.1)
    pair = pair_lab(small(Role.PREFILL), small(Role.PREFILL))
    pair.arrive("late", 8, 30, slo=tight)
    while pair.queue or not pair.d.core.state.decoding:
        assert pair.deliver() or pair.step(pair.p)
    for index in range(6):
        pair.d.arrive(f"whole{index}", 60, 2, slo=CALM)
    while pair.d.got["late"].finish is None:
        assert pair.step(pair.d)
    assert max(pair.d.got["late"].gaps_s[1:]) <= tight.tpot_s * 3
    due = pair.d.got["late"].token_times
    assert due[-1] - due[1] <= tight.tpot_s * (len(due) - 2) + 1e-6
    pair.finish()

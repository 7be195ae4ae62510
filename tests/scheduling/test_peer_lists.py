"""Who is told of whom: whole lists, only to those that compute prompts for others, only when something changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from contracts.views import ReplicaIdentity
from scheduling.peer_lists import FEW, PeerLists

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")


def identity(replica_id: str, incarnation: str = "i1", *, can_take: bool = True) -> ReplicaIdentity:
    model = ModelSpec(
        name="m",
        family="llama",
        vocab_size=9,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_context=64,
        tie_word_embeddings=True,
    )
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=incarnation,
        version="test",
        model=model,
        fingerprint=Fingerprint(model_digest="d", layout=LAYOUT),
        num_blocks=8,
        max_running=8,
        max_waiting=8,
        data_endpoints=(f"tcp://{replica_id}:1",) if can_take else (),
    )


def told(lists: PeerLists) -> dict[str, list[tuple[str, str]]]:
    return {to: [(peer.replica_id, peer.incarnation) for peer in peers] for to, peers in lists.news()}


def test_each_prefill_replica_knows_every_decode_replica() -> None:
    lists = PeerLists()
    lists.joined(identity("p0"), Role.PREFILL)
    assert told(lists) == {"p0": []}
    lists.joined(identity("d1"), Role.DECODE)
    lists.joined(identity("m0"), Role.MIXED)
    lists.joined(identity("d2", can_take=False), Role.DECODE)
    assert told(lists) == {"p0": [("d1", "i1")]}
    assert told(lists) == {}
    lists.joined(identity("p1"), Role.PREFILL)
    lists.joined(identity("d0"), Role.DECODE)
    both = [("d0", "i1"), ("d1", "i1")]
    assert told(lists) == {"p0": both, "p1": both}


def test_a_new_process_a_loss_and_a_reconnect() -> None:
    lists = PeerLists()
    lists.joined(identity("p0"), Role.PREFILL)
    lists.joined(identity("d0"), Role.DECODE)
    lists.news()
    lists.left("d0")
    assert told(lists) == {"p0": []}
    lists.joined(identity("d0", "i2"), Role.DECODE)
    assert told(lists) == {"p0": [("d0", "i2")]}
    lists.left("p0")
    assert told(lists) == {}
    lists.joined(identity("p0"), Role.PREFILL)
    assert told(lists) == {"p0": [("d0", "i2")]}


def test_a_role_that_changes() -> None:
    lists = PeerLists()
    lists.joined(identity("p0"), Role.PREFILL)
    lists.joined(identity("m0"), Role.MIXED)
    lists.news()
    lists.changed_role("m0", Role.DECODE)
    assert told(lists) == {"p0": [("m0", "i1")]}
    lists.changed_role("p0", Role.DECODE)
    assert told(lists) == {}


def test_replicas_that_serve_whole_requests_know_the_two_that_follow_them() -> None:
    lists = PeerLists()
    for number in range(5):
        lists.joined(identity(f"m{number}"), Role.MIXED if number % 2 else Role.ALTERNATING)
    lists.joined(identity("m5", can_take=False), Role.MIXED)
    assert {to: [name for name, _ in peers] for to, peers in told(lists).items()} == {
        "m0": ["m1", "m2"],
        "m1": ["m2", "m3"],
        "m2": ["m3", "m4"],
        "m3": ["m0", "m4"],
        "m4": ["m0", "m1"],
    }


def test_whoever_was_told_of_stays_told_of_while_the_same_process_lives() -> None:
    """Else a hand-off under way to a replica whose role changes would lose its link."""
    lists = PeerLists()
    lists.joined(identity("p0"), Role.PREFILL)
    for name in ("d0", "d1"):
        lists.joined(identity(name), Role.DECODE)
    lists.news()
    lists.changed_role("d0", Role.PREFILL)
    assert told(lists) == {"d0": [("d1", "i1")]}
    lists.changed_role("p0", Role.MIXED)
    assert told(lists) == {}
    lists.joined(identity("d0", "i2"), Role.MIXED)
    assert told(lists)["p0"] == [("d0", "i2"), ("d1", "i1")]
    lists.left("d1")
    assert told(lists)["p0"] == [("d0", "i2")]


def _lists_as_defined(known: dict[str, tuple[str, Role, bool]], told: dict[str, list[tuple[str, str]]]) -> None:
    """What `news` must have led to, from the whole fleet: `known` holds incarnation, role and whether KV can come."""
    for name, (_, role, can_take) in known.items():
        alive = {(n, i) for n, (i, _, takes) in known.items() if takes and n != name}
        names = {n for n, i in told.get(name, []) if (n, i) in alive}
        if role is Role.PREFILL:
            names |= {n for n, _ in alive if known[n][1] is Role.DECODE}
        elif role is not Role.DECODE and can_take:
            whole = [n for n, _ in alive if known[n][1] in (Role.ALTERNATING, Role.MIXED)]
            names |= set(sorted(whole, key=lambda n: (n < name, n))[:FEW])
        if names or name in told or role is Role.PREFILL:
            told[name] = [(n, known[n][0]) for n in sorted(names)]


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "d", "e", "f"]),
            st.sampled_from([*Role, "left"]),
            st.integers(0, 1),
            st.booleans(),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_lists_made_anew_only_where_something_changed_are_those_of_the_whole_fleet(
    changes: list[tuple[str, Role | str, int, bool, bool]],
) -> None:
    lists, known = PeerLists(), dict[str, tuple[str, Role, bool]]()
    seen, expected = dict[str, list[tuple[str, str]]](), dict[str, list[tuple[str, str]]]()
    for name, what, incarnation, can_take, stays in changes:
        kept = stays and name in known
        if not isinstance(what, Role):
            lists.left(name)
        elif kept:
            lists.changed_role(name, what)
            known[name] = (known[name][0], what, known[name][2])
        else:
            lists.joined(identity(name, f"i{incarnation}", can_take=can_take), what)
            known[name] = (f"i{incarnation}", what, can_take)
        if not isinstance(what, Role):
            known.pop(name, None)
        if not isinstance(what, Role) or not kept:
            seen.pop(name, None)
            expected.pop(name, None)
        seen |= told(lists)
        _lists_as_defined(known, expected)
        assert seen == expected


def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    lists = PeerLists()
    lists.joined(identity("p0"), Role.PREFILL)
    for number in range(20):
        lists.joined(identity(f"d{number}"), Role.DECODE)
        assert told(lists)["p0"] == [(f"d{number}", "i1")]
        lists.left(f"d{number}")
        assert told(lists) == {"p0": []}
    assert not lists._told_of
    assert not lists._changed

"""Who is told of whom: whole lists, only to those that compute prompts for others, only when something changed."""

from __future__ import annotations

from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Role
from contracts.views import ReplicaIdentity
from scheduling.peer_lists import PeerLists

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

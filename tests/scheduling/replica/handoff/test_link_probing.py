"""What a replica says about its links, and when it probes one."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.replica_io import LinkDown, LinkMeasured, LinkUp, ProbeLink, Woken
from scheduling.config import ReplicaCoreConfig

Lab = Any
UP = LinkUp("d", "d1", "tcp", "eth0", 2e-4)
SETTINGS = ReplicaCoreConfig(link_probe_min_bytes=1_000_000, link_probe_max_bytes=8_000_000)


def probes(lab: Lab) -> list[ProbeLink]:
    return [action for action in lab.actions if isinstance(action, ProbeLink)]


def link(lab: Lab, peer_id: str = "d") -> Any:
    return next(v for v in lab.core.view(lab.now, "p", "1").links if v.peer_id == peer_id)


def pass_time(lab: Lab, seconds: float) -> None:
    for _ in range(int(seconds * 2)):
        lab.now += 0.5
        lab.send(Woken())


def test_a_link_is_probed_when_it_comes_up_and_when_it_is_stale(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    lab.send(UP)
    assert probes(lab) == [ProbeLink("d", 1_000_000)]
    assert link(lab).bytes_per_s is None
    lab.send(LinkMeasured("d", 1_000_000, 0.02, probe=True))
    assert link(lab).bytes_per_s == pytest.approx(50e6)
    pass_time(lab, 29.0)
    assert len(probes(lab)) == 1
    assert link(lab).age_s == 29.0
    pass_time(lab, 1.0)
    assert probes(lab)[1:] == [ProbeLink("d", 5_000_000)]  # a tenth of a second


def test_real_transfers_make_probes_needless(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    lab.send(UP)
    lab.send(LinkMeasured("d", 1_000_000, 0.02, probe=True))
    for _ in range(10):
        pass_time(lab, 20.0)
        lab.send(LinkMeasured("d", 4_000_000, 0.1))
    assert len(probes(lab)) == 1


def test_one_probe_at_a_time_and_not_often(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    for name in "abc":
        lab.send(LinkUp(name, "1", "tcp", "eth0", 0.0))
    assert [p.peer_id for p in probes(lab)] == ["a"]
    lab.send(LinkMeasured("a", 1_000_000, 0.02, probe=True))
    assert len(probes(lab)) == 1
    pass_time(lab, 1.0)
    assert [p.peer_id for p in probes(lab)] == ["a", "b"]
    pass_time(lab, 14.5)
    assert len(probes(lab)) == 2
    pass_time(lab, 0.5)  # no answer: on to the next
    assert [p.peer_id for p in probes(lab)] == ["a", "b", "c"]


def test_no_probe_while_anything_is_under_way_on_the_link(pair_lab: Any) -> None:
    pair = pair_lab({"config": SETTINGS})
    pair.arrive("a", 30)
    pair.deliver()
    pair.send(pair.p, UP)
    assert not probes(pair.p)
    assert link(pair.p).bytes_in_flight == 32 * 512
    pair.finish()
    pair.p.send(Woken())
    assert len(probes(pair.p)) == 1
    assert link(pair.p).bytes_in_flight == 0
    assert (link(pair.p).transfers, link(pair.p).failed_transfers) == (1, 0)


def test_a_link_that_is_down_says_why_and_is_not_probed(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    lab.send(LinkDown("d", "d1", "block sizes 16 and 24 do not divide each other"))
    pass_time(lab, 40.0)
    assert not probes(lab)
    assert link(lab).why_not == "block sizes 16 and 24 do not divide each other"
    lab.send(UP)
    assert link(lab).why_not is None
    assert len(probes(lab)) == 1
    lab.send(LinkDown("d", "d0", "an old process"))
    assert link(lab).why_not is None
    lab.send(LinkDown("d", "d1", "gone"))
    lab.send(LinkMeasured("d", 1_000_000, 0.1))
    assert link(lab).why_not == "gone"


def test_a_new_incarnation_starts_anew_and_the_same_one_keeps_its_rate(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    lab.send(UP)
    lab.send(LinkMeasured("d", 1_000_000, 0.02, probe=True))
    lab.send(LinkDown("d", "d1", "the connection broke"))
    lab.send(UP)
    assert link(lab).bytes_per_s == pytest.approx(50e6)
    lab.send(LinkUp("d", "d2", "tcp", "eth0", 2e-4))
    assert link(lab).bytes_per_s is None
    assert link(lab).peer_incarnation == "d2"


def test_links_of_the_past_are_bounded(replica_lab: Any) -> None:
    lab = replica_lab()
    lab.send(UP)
    for index in range(200):
        lab.send(LinkDown(f"peer{index}", "1", "gone"))
    assert len(lab.core.view(lab.now, "p", "1").links) <= 65
    assert link(lab).why_not is None


def test_measurements_of_nobody_are_harmless(replica_lab: Any) -> None:
    lab = replica_lab()
    lab.send(LinkMeasured("x", 1_000_000, 0.1))
    assert lab.core.view(lab.now, "p", "1").links == ()


def test_a_transfer_that_waited_for_the_engine_tells_only_that_a_link_is_faster(replica_lab: Any) -> None:
    """From 2 MB/s to much more, while prompts are computed at 30 MB/s at most: the link is not thought slow for long,
    and is probed once it is idle."""
    lab = replica_lab(config=SETTINGS)
    lab.send(UP)
    lab.send(LinkMeasured("d", 1_000_000, 0.5, probe=True))
    lab.send(LinkMeasured("d", 1_000_000, 1.0, at_least=True))
    assert link(lab).bytes_per_s == pytest.approx(2e6)  # slower than known: says nothing
    lab.send(LinkMeasured("d", 4_000_000, 0.2, at_least=True))
    lab.send(LinkMeasured("d", 4_000_000, 0.13, at_least=True))
    assert link(lab).bytes_per_s == pytest.approx(8e6 / 0.33, rel=0.2)
    pass_time(lab, 3.0)
    assert len(probes(lab)) == 2
    lab.send(LinkMeasured("d", 8_000_000, 0.1, probe=True))
    assert link(lab).bytes_per_s == pytest.approx(80e6)


def test_a_link_whose_rate_varies_is_not_probed_all_the_time(replica_lab: Any) -> None:
    lab = replica_lab(config=SETTINGS)
    lab.send(UP)
    lab.send(LinkMeasured("d", 1_000_000, 0.02, probe=True))
    for turn in range(60):
        pass_time(lab, 1.0)
        lab.send(LinkMeasured("d", 4_000_000, 0.1 if turn % 2 else 0.05))
        if len(probes(lab)) > 1:
            lab.send(LinkMeasured("d", 4_000_000, 0.07, probe=True))
    assert 2 <= len(probes(lab)) <= 22

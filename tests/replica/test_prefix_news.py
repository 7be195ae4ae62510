"""What routers hear of the prefix cache: everything once, then changes, and everything anew when they fall behind."""

from __future__ import annotations

from typing import Any

import pytest

from contracts import wire
from contracts.prefixes import MAX_NAMES, PrefixChange
from replica.channel import Delivery
from replica.prefix_news import MAX_BEHIND, PER_BEAT, PrefixNews
from replica.routers import Routers


class Channel:
    """Takes every message, or says that the connection is gone."""

    def __init__(self) -> None:
        self.said: dict[bytes, list[PrefixChange]] = {}
        self.gone: set[bytes] = set()
        self.tries = 0

    def send(self, identity: bytes, frame: bytes) -> Delivery:
        self.tries += 1
        if identity in self.gone:
            return Delivery.GONE
        message = wire.decode_replica_message(frame)
        assert isinstance(message, wire.Prefixes)
        self.said.setdefault(identity, []).append(message.change)
        return Delivery.QUEUED


class Cache:
    """Holds `names`; `add` puts one more in."""

    def __init__(self, size: int) -> None:
        self.names = list(range(size))
        self.changes: list[PrefixChange] = []

    def add(self) -> None:
        self.names.append(len(self.names))
        self.changes.append(PrefixChange(block_size=16, added=(self.names[-1],)))

    def take_prefix_changes(self) -> list[PrefixChange]:
        taken, self.changes = self.changes, []
        return taken

    def prefix_contents(self) -> list[PrefixChange]:
        portions = [self.names[i : i + MAX_NAMES] for i in range(0, max(1, len(self.names)), MAX_NAMES)]
        return [PrefixChange(block_size=16, added=tuple(portion), restart=not i) for i, portion in enumerate(portions)]


def heard(changes: list[PrefixChange]) -> set[int]:
    names: set[int] = set()
    for change in changes:
        names = (set() if change.restart else names) - set(change.removed) | set(change.added)
    return names


@pytest.fixture
def told() -> Any:
    def make(size: int) -> tuple[Channel, Routers, Cache, PrefixNews]:
        channel, cache = Channel(), Cache(size)
        routers = Routers(channel, 8)  # type: ignore[arg-type]
        return channel, routers, cache, PrefixNews(cache, routers, 6 * MAX_NAMES)

    return make


def test_everything_first_then_changes_and_everything_again_on_a_new_connection(told: Any) -> None:
    channel, routers, cache, news = told(3)
    routers.join(b"one", wire.Hello(router_id="r"), 0.0)
    news.tell()
    cache.add()
    news.tell()
    news.tell()
    first, second = channel.said[b"one"]
    assert (first.restart, first.added, second.restart, second.added) == (True, (0, 1, 2), False, (3,))
    routers.join(b"two", wire.Hello(router_id="r"), 0.0)
    cache.add()
    news.tell()
    assert heard(channel.said[b"two"]) == heard(channel.said[b"one"]) == {0, 1, 2, 3, 4}
    assert len(channel.said[b"two"]) == 1


def test_a_large_cache_is_told_in_portions_and_what_changes_meanwhile_follows(told: Any) -> None:
    channel, routers, cache, news = told(6 * MAX_NAMES - 1)
    routers.join(b"one", wire.Hello(router_id="r"), 0.0)
    news.tell()
    assert len(channel.said[b"one"]) == PER_BEAT
    cache.add()
    news.tell()
    assert heard(channel.said[b"one"]) == set(cache.names)


def test_a_router_that_falls_behind_gets_everything_anew(told: Any) -> None:
    channel, routers, cache, news = told(3)
    session = routers.join(b"one", wire.Hello(router_id="r"), 0.0)
    for _ in range(40):
        for _ in range(PER_BEAT + 3):
            cache.add()
        news.tell()
        assert len(session.prefixes_unsaid) <= MAX_BEHIND + 6
    for _ in range(40):
        news.tell()
    assert sum(change.restart for change in channel.said[b"one"]) > 1
    assert heard(channel.said[b"one"]) == set(cache.names)


def test_nothing_more_is_sent_on_a_connection_that_is_gone(told: Any) -> None:
    channel, routers, _, news = told(3 * MAX_NAMES)
    routers.join(b"one", wire.Hello(router_id="r"), 0.0)
    channel.gone.add(b"one")
    news.tell()
    assert (channel.tries, routers.sessions.all(), routers.counters.gone) == (1, [], 1)


def test_without_a_prefix_cache_nothing_is_said(told: Any) -> None:
    channel, routers, cache, news = told(0)
    cache.prefix_contents = list
    routers.join(b"one", wire.Hello(router_id="r"), 0.0)
    news.tell()
    news.tell()
    assert channel.tries == 0

"""Stop strings: whatever the chunks, the result is that of a plain search over the whole text."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from router.stop_strings import StopStrings

LETTERS = st.text("ab<|é", max_size=40)
STOPS = st.lists(st.text("ab<|é", min_size=1, max_size=5), min_size=1, max_size=4, unique=True)


def reference(text: str, stops: list[str], first_end: int = 0) -> tuple[str, str | None]:
    """The text up to the stop string that completes first (the longest of those), by brute force."""
    for end in range(first_end, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            longest = max(completed, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, points: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(point % (len(text) + 1) for point in points)})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def filtered(chunks: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    stopper = StopStrings(tuple(stops))
    shown = []
    for chunk in chunks:
        shown.append(stopper.push(chunk))
        if stopper.matched is not None:
            return shown, stopper.matched
    return [*shown, stopper.flush()], None


@settings(deadline=None)
@given(LETTERS, STOPS, st.lists(st.integers(0, 100), max_size=12))
def test_chunks_do_not_matter(text: str, stops: list[str], points: list[int]) -> None:
    shown, matched = filtered(cut(text, points), stops)
    assert ("".join(shown), matched) == reference(text, stops)


@settings(deadline=None)
@given(LETTERS, STOPS)
def test_nothing_is_shown_that_could_still_become_a_stop(text: str, stops: list[str]) -> None:
    """After every character the shown text is the longest that no continuation can take back."""
    stopper = StopStrings(tuple(stops))
    shown = ""
    for position, char in enumerate(text):
        shown += stopper.push(char)
        if stopper.matched is not None:
            break
        seen = text[: position + 1]
        tails = [seen[-size:] for size in range(1, len(seen) + 1)]
        held = max((len(t) for t in tails if any(s.startswith(t) and s != t for s in stops)), default=0)
        assert shown == seen[: len(seen) - held]


def test_before_min_tokens_a_match_is_text() -> None:
    stopper = StopStrings(("ab",))
    assert stopper.push("xab", may_stop=False) == "xab"
    assert stopper.push("ya") == "y"
    assert stopper.push("b") == ""
    assert stopper.matched == "ab"


def test_a_match_may_begin_before_min_tokens() -> None:
    stopper = StopStrings(("abc",))
    assert stopper.push("ab", may_stop=False) == ""
    assert stopper.push("c") == ""
    assert stopper.matched == "abc"


def test_earliest_match_wins_over_the_order_of_the_list() -> None:
    stopper = StopStrings(("world", "hello"))
    assert stopper.push("say hello world") == "say "
    assert stopper.matched == "hello"


def test_held_text_that_did_not_become_a_stop_is_released_with_its_own_tail_held() -> None:
    stopper = StopStrings(("DEFGHIJ",))
    assert stopper.push("DEF") == ""
    assert stopper.push("GHI DE") == "DEFGHI "
    assert stopper.flush() == "DE"

"""One choice: text, stop strings, log probabilities and counts, however the replica cuts its outputs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.batch import TokenLogprobs
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from router.choice import Choice, ShownToken
from router.token_table import TokenTable

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
EOS = 2


def run(
    table: TokenTable,
    ids: list[int],
    sizes: list[int],
    *,
    stops: tuple[str, ...] = (),
    min_tokens: int = 0,
    stop_token: bool = False,
) -> tuple[Choice, str, list[ShownToken]]:
    """Feed `ids` in outputs of the given sizes, taking after each."""
    choice = Choice(table, stops=stops, min_tokens=min_tokens)
    text, shown, start = "", [], 0
    while start < len(ids) and choice.finish_reason is None:
        size = sizes.pop(0) if sizes else len(ids)
        part = tuple(ids[start : start + size])
        start += size
        last = start >= len(ids)
        choice.push(
            SequenceOutput(
                request_id="s",
                token_ids=part,
                logprobs=tuple(TokenLogprobs(token, -1.0) for token in part),
                finish=(FinishReason.STOP if stop_token else FinishReason.LENGTH) if last else None,
                stop_token_id=part[-1] if last and stop_token else None,
            )
        )
        new_text, new_tokens = choice.take()
        assert new_text or not new_tokens or choice.finish_reason is not None
        text += new_text
        shown += new_tokens
    return choice, text, shown


@QUICK
@given(
    ids=st.lists(st.integers(3, 399), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 5), max_size=30),
    stops=st.lists(st.text("abe \ufffdÃ", min_size=1, max_size=3), max_size=3, unique=True),
    min_tokens=st.integers(0, 10),
)
def test_cutting_does_not_matter(
    tiny_table: TokenTable, ids: list[int], sizes: list[int], stops: list[str], min_tokens: int
) -> None:
    one, text_one, shown_one = run(tiny_table, ids, [], stops=tuple(stops), min_tokens=min_tokens)
    many, text_many, shown_many = run(tiny_table, ids, list(sizes), stops=tuple(stops), min_tokens=min_tokens)
    assert (text_one, shown_one) == (text_many, shown_many)
    assert (one.finish_reason, one.num_tokens) == (many.finish_reason, many.num_tokens)
    assert many.num_tokens >= min(min_tokens, len(ids))
    joined = "".join(token.text for token in shown_many)
    assert [token.offset for token in shown_many] == [
        len("".join(token.text for token in shown_many[:i])) for i in range(len(shown_many))
    ]
    assert joined.startswith(text_many.removesuffix("\ufffd")) or text_many.startswith(joined)


def test_without_stops_every_token_is_shown_once(tiny_table: TokenTable) -> None:
    ids = tiny_table.tokenizer.encode("héllo wörld 🚀").ids
    choice, text, shown = run(tiny_table, ids, [1] * len(ids))
    assert text == "héllo wörld 🚀"
    assert [token.token_id for token in shown] == ids
    assert "".join(token.text for token in shown) == text
    assert choice.num_tokens == len(ids)


def test_the_end_token_is_counted_and_not_shown(tiny_table: TokenTable) -> None:
    ids = [*tiny_table.tokenizer.encode("hi").ids, EOS]
    choice, text, shown = run(tiny_table, ids, [], stop_token=True)
    assert (text, choice.num_tokens, choice.finish_reason) == ("hi", len(ids), FinishReason.STOP)
    assert EOS not in [token.token_id for token in shown]


def test_a_stop_token_that_is_a_word_is_not_shown(tiny_table: TokenTable) -> None:
    ids = tiny_table.tokenizer.encode("hi!").ids
    _, text, _ = run(tiny_table, ids, [1] * len(ids), stop_token=True)
    assert text == "hi"


def test_tokens_of_a_stop_string_are_neither_shown_nor_followed(tiny_table: TokenTable) -> None:
    ids = tiny_table.tokenizer.encode("hi<|stop|>more").ids
    choice, text, shown = run(tiny_table, ids, [1] * len(ids), stops=("<|stop|>",))
    assert text == "hi"
    assert "".join(token.text for token in shown) == "hi"
    assert choice.finish_reason is FinishReason.STOP
    assert choice.num_tokens < len(ids)


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(tiny_table: TokenTable) -> None:
    ids = tiny_table.tokenizer.encode("answer <|im").ids
    _, text, shown = run(tiny_table, ids, [1] * len(ids), stops=("<|im_end|>",))
    assert text == "answer <|im"
    assert "".join(token.text for token in shown) == text

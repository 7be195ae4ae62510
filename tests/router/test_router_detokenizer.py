"""Tokens to text: joined pieces are the tokenizer's own decoding, and no half character is ever shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from router.detokenizer import new_detokenizer
from router.token_table import TokenTable

HARD = "삼겹살 안녕 世界 🧑‍🚀 ď é \u200d ﷺ naïve\r\n\t x"
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)


def pieces_of(table: TokenTable, ids: list[int], *, at_start: bool = False) -> list[str]:
    detokenizer = new_detokenizer(table, at_start=at_start)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@QUICK
@given(ids=st.lists(st.integers(0, 399), max_size=60))
def test_any_tokens_of_a_byte_level_vocabulary(tiny_table: TokenTable, ids: list[int]) -> None:
    whole = tiny_table.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(tiny_table, ids)) == whole


@QUICK
@given(ids=st.lists(st.one_of(st.integers(0, 49_151), st.integers(0, 280)), max_size=60))
def test_any_tokens_of_the_default_model(smol_table: TokenTable, ids: list[int]) -> None:
    whole = smol_table.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(smol_table, ids)) == whole


@QUICK
@given(text=st.text(max_size=60))
def test_any_text_comes_back_without_replacement_characters(tiny_table: TokenTable, text: str) -> None:
    pieces = pieces_of(tiny_table, tiny_table.tokenizer.encode(text, add_special_tokens=False).ids)
    assert "".join(pieces) == text
    assert pieces[-1] == ""


@pytest.mark.parametrize("table_name", ["tiny_table", "smol_table"])
def test_cut_anywhere_there_is_at_most_one_replacement_character_and_only_at_the_end(
    table_name: str, request: pytest.FixtureRequest
) -> None:
    table: TokenTable = request.getfixturevalue(table_name)
    ids = table.tokenizer.encode(HARD, add_special_tokens=False).ids
    for length in range(len(ids) + 1):
        pieces = pieces_of(table, ids[:length])
        assert "\ufffd" not in "".join(pieces[:-1])
        assert pieces[-1] in {"", "\ufffd"}
        assert HARD.startswith("".join(pieces[:-1]))


def test_special_tokens_are_no_text(smol_table: TokenTable) -> None:
    ids = smol_table.tokenizer.encode("<|im_start|>hi<|im_end|>", add_special_tokens=False).ids
    assert "".join(pieces_of(smol_table, ids)) == "hi"
    assert smol_table.label(1) == "<|im_start|>"


def test_ids_outside_the_vocabulary_are_no_text(tiny_table: TokenTable) -> None:
    assert pieces_of(tiny_table, [10**6, -1]) == ["", "", ""]
    assert tiny_table.label(10**6) == ""


def test_labels_of_partial_characters_name_their_bytes(tiny_table: TokenTable) -> None:
    ids = tiny_table.tokenizer.encode("ƿ", add_special_tokens=False).ids
    assert [tiny_table.label(token_id) for token_id in ids] == ["bytes:\\xc6", "bytes:\\xbf"]


@pytest.fixture(scope="module")
def sentencepiece_table() -> TokenTable:
    """A vocabulary like Llama 2's: words with U+2581 for spaces, and a token for each byte."""
    words = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁cat", "s", "a", "t", "c", "▁c"]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    return TokenTable(tokenizer)


@QUICK
@given(text=st.text("the cats 🚀é한", max_size=20))
def test_byte_fallback_text_comes_back(sentencepiece_table: TokenTable, text: str) -> None:
    ids = sentencepiece_table.tokenizer.encode(text, add_special_tokens=False).ids
    assert sentencepiece_table.is_tabled
    assert "".join(pieces_of(sentencepiece_table, ids, at_start=True)) == sentencepiece_table.tokenizer.decode(ids)


@QUICK
@given(prompt=st.text("the cats 🚀", min_size=1, max_size=9), ids=st.lists(st.integers(3, 10), max_size=9))
def test_a_continuation_keeps_its_first_space(sentencepiece_table: TokenTable, prompt: str, ids: list[int]) -> None:
    """What the model adds to a prompt is the difference of the decodings, its leading space included."""
    decode = sentencepiece_table.tokenizer.decode
    before = sentencepiece_table.tokenizer.encode(prompt, add_special_tokens=False).ids
    assert decode(before) + "".join(pieces_of(sentencepiece_table, ids)) == decode([*before, *ids])


def test_a_byte_fallback_character_is_shown_as_soon_as_it_is_whole(sentencepiece_table: TokenTable) -> None:
    ids = [11 + byte for byte in "é🚀".encode()]
    assert pieces_of(sentencepiece_table, ids) == ["", "é", "", "", "", "🚀", ""]


@pytest.fixture(scope="module")
def word_piece_table() -> TokenTable:
    """A decoder that looks at neighbours, so that no table of bytes can stand for it."""
    vocabulary = {"[UNK]": 0, "hel": 1, "##lo": 2, "world": 3, "##s": 4, "x": 5}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return TokenTable(tokenizer)


@QUICK
@given(ids=st.lists(st.sampled_from([1, 2, 3, 4, 5]), max_size=30))
def test_any_other_decoder_through_a_window(word_piece_table: Any, ids: list[int]) -> None:
    assert not word_piece_table.is_tabled
    whole = word_piece_table.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(word_piece_table, ids)) == whole

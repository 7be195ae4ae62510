"""Tokenizers rebuilt from GGUF fields give the token ids of the tokenizers they came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from contracts.errors import ModelError
from engine.checkpoint.resolve import resolve_model

MakeDirectory = Callable[..., Path]
MakeGGUF = Callable[..., Path]
TRICKY = [
    "",
    " ",
    "12345 and 3.14159, 1,000,000",
    "two  spaces,   three\ttab\t\ttabs",
    "line\n\nline \n  indented\r\n",
    "I'll DON'T we've it's 'S",
    "café cafe\u0301 naïve 你好世界 مرحبا",
    "👩‍👩‍👧 🏳️‍🌈 \U0001f600\ufffd",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|x> <|endoftext|>tail",
    "def f(x):\n    return x**2  # ²½Ⅷ",
]


@pytest.fixture(scope="module")
def llama(hf_model: MakeDirectory) -> Path:
    return hf_model("llama")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_ids_are_those_of_the_source(
    llama: Path,
    gguf_model: MakeGGUF,
    byte_level_tokenizer: Callable[[str], Tokenizer],
    tmp_path: Path,
    pre: str,
) -> None:
    files = resolve_model(str(gguf_model(llama, "llama", pre=pre)), cache_dir=tmp_path)
    source, rebuilt = byte_level_tokenizer(pre), Tokenizer.from_file(str(files.tokenizer_file))
    assert files.add_bos == (pre == "llama-bpe")
    for text in TRICKY:
        ids = source.encode(text).ids
        assert rebuilt.encode(text, add_special_tokens=False).ids == ids
        assert rebuilt.encode(text).ids == [1] * files.add_bos + ids
        assert rebuilt.decode(ids, skip_special_tokens=False) == source.decode(ids, skip_special_tokens=False)


def test_user_defined_tokens_are_one_token_and_not_special(llama: Path, gguf_model: MakeGGUF, tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        letters = ["a", "b", "ab", "<tool>", "<|im_end|>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(letters)
        writer.add_token_types([1, 1, 1, 4, 3])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(4)

    path = gguf_model(llama, "llama", edit=edit, tokenizer=False)
    tokenizer = Tokenizer.from_file(str(resolve_model(str(path), cache_dir=tmp_path).tokenizer_file))
    ids = tokenizer.encode("ab<tool>b<|im_end|>").ids
    assert ids == [2, 3, 1, 4]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<tool>b"


def test_a_bos_that_cannot_be_put_first_is_named(llama: Path, gguf_model: MakeGGUF, tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b", "ab", "$:x"])
        writer.add_token_types([1, 1, 1, 3])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(3)
        writer.add_add_bos_token(True)

    with pytest.raises(ModelError, match=r"'\$:x' cannot be a BOS token"):
        resolve_model(str(gguf_model(llama, "llama", edit=edit, tokenizer=False)), cache_dir=tmp_path)


def sentence_piece_source() -> tuple[Tokenizer, list[str], list[float], list[int]]:
    """A SentencePiece-style BPE tokenizer, with its tokens, scores and GGUF token types."""
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    specials = ["<unk>", "<s>", "</s>", *byte_tokens]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    text = ["the lower newer wider low new wide", "lowest and newest of the widest", "thin then them there"]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=specials, show_progress=False, max_token_length=6)
    tokenizer.train_from_iterator([line for line in text for _ in range(4)], trainer)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    return tokenizer, tokens, [-float(max(0, i - 259)) for i in range(len(tokens))], types


def test_sentence_piece_ids_are_those_of_the_source(llama: Path, gguf_model: MakeGGUF, tmp_path: Path) -> None:
    source, tokens, scores, types = sentence_piece_source()

    def edit(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    files = resolve_model(str(gguf_model(llama, "llama", edit=edit, tokenizer=False)), cache_dir=tmp_path)
    assert files.add_bos
    assert (files.special_tokens.bos, files.special_tokens.eos, files.special_tokens.unk) == ("<s>", "</s>", "<unk>")
    rebuilt = Tokenizer.from_file(str(files.tokenizer_file))
    for text in [*TRICKY, "the lowest  of then", "newer then</s>lower", " thin", "widest them wide"]:
        ids = rebuilt.encode(text, add_special_tokens=False).ids
        if "</s>" not in text:  # the source has its specials in the vocabulary only
            assert ids == source.encode(text).ids
        assert rebuilt.encode(text).ids == [1, *ids]
    assert 2 in rebuilt.encode("newer then</s>lower").ids
    assert rebuilt.decode(rebuilt.encode("the é 你 low").ids) == "the é 你 low"


@pytest.mark.parametrize(
    ("model", "pre", "merges", "message"),
    [
        ("bert", "gpt-2", [], "tokenizer.ggml.model 'bert' is not supported"),
        ("gpt2", "tekken", [], "tokenizer.ggml.pre 'tekken' is not supported"),
        ("gpt2", None, [], "metadata key 'tokenizer.ggml.pre' is missing"),
        ("gpt2", "gpt-2", ["a c"], "merges has 'a c', whose parts and union are not all tokens"),
        ("llama", None, [], "metadata key 'tokenizer.ggml.scores' is missing"),
    ],
)
def test_unknown_tokenizers_are_refused(
    llama: Path, gguf_model: MakeGGUF, tmp_path: Path, model: str, pre: str | None, merges: list[str], message: str
) -> None:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(model)
        if pre:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges([*merges, "a b"])

    with pytest.raises(ModelError, match=message):
        resolve_model(str(gguf_model(llama, "llama", edit=edit, tokenizer=False)), cache_dir=tmp_path)

"""The tokenizer inside a GGUF file as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from contracts.errors import ModelError
from engine.checkpoint.gguf_file import GGUFFile
from engine.checkpoint.spm_merges import merges_from_scores

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPECIAL_KINDS = {_UNKNOWN, _CONTROL}
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2 = {"gpt-2", "gpt2", "default"}
_QWEN2 = {"qwen2", "deepseek-r1-qwen"}
_LLAMA3 = {"llama-bpe", "llama3", "llama-v3"}
_SPECIAL_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Raises `ModelError` for a tokenizer model or pre-tokenizer that is not known, naming it."""
    model = file.required("tokenizer.ggml.model", str)
    if model not in {"gpt2", "llama"}:
        raise ModelError(f"{file.path}: tokenizer.ggml.model {model!r} is not supported (supported: gpt2, llama)")
    tokenizer = _byte_level(file) if model == "gpt2" else _sentence_piece(file)
    tokens, types = _tokens(file)
    kinds = list(zip(tokens, types, strict=True))
    special = [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind in _SPECIAL_KINDS]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == _USER_DEFINED])
    bos = _special(file, "bos")
    if bos is not None and adds_bos(file):
        tokenizer.post_processor = _bos_first(file, bos, tokens.index(bos))
    return tokenizer


def tokenizer_config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos(file),
        "clean_up_tokenization_spaces": False,
        "chat_template": file.optional("tokenizer.chat_template", str),
        **{f"{name}_token": _special(file, name) for name in _SPECIAL_IDS},
    }


def adds_bos(file: GGUFFile) -> bool:
    """Whether raw text gets a BOS: as the file says, else as llama.cpp does for this kind of tokenizer."""
    stated = file.optional("tokenizer.ggml.add_bos_token", bool)
    if stated is not None:
        return bool(stated)
    return file.metadata.get("tokenizer.ggml.model") == "llama" or file.metadata.get("tokenizer.ggml.pre") in _LLAMA3


def _byte_level(file: GGUFFile) -> Tokenizer:
    pre = file.required("tokenizer.ggml.pre", str)
    tokens, _ = _tokens(file)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [_pair(file, merge, vocabulary) for merge in file.required("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    elif pre in _GPT2:
        tokenizer.pre_tokenizer = words
    elif pre in _LLAMA3:
        tokenizer.pre_tokenizer = _split(_LLAMA3_WORDS)
    elif pre in _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = _split(_QWEN2_WORDS)
    else:
        supported = ", ".join(sorted({"smollm", *_QWEN2, *_GPT2, *_LLAMA3}))
        raise ModelError(f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported (supported: {supported})")
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bos_first(file: GGUFFile, bos: str, bos_id: int) -> processors.TemplateProcessing:
    try:
        return processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, bos_id)]
        )
    except ValueError as error:  # a token that the template language reads as something else
        raise ModelError(f"{file.path}: {bos!r} cannot be a BOS token: {error}") from error


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sentence_piece(file: GGUFFile) -> Tokenizer:
    """A SentencePiece BPE model: spaces become U+2581, unknown characters fall back to byte tokens."""
    tokens, types = _tokens(file)
    scores = file.required("tokenizer.ggml.scores", list)
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pieces = {token: scores[i] for i, token in enumerate(tokens) if types[i] == _NORMAL}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = merges_from_scores(vocabulary, pieces)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = file.optional("tokenizer.ggml.add_space_prefix", bool)
    prefix = True if prefix is None else prefix
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _tokens(file: GGUFFile) -> tuple[list[str], list[int]]:
    tokens: list[str] = file.required("tokenizer.ggml.tokens", list)
    types: list[int] = file.optional("tokenizer.ggml.token_type", list) or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    return tokens, types


def _pair(file: GGUFFile, merge: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not {left, right, left + right} <= vocabulary.keys():
        raise ModelError(f"{file.path}: tokenizer.ggml.merges has {merge!r}, whose parts and union are not all tokens")
    return left, right


def _special(file: GGUFFile, name: str) -> str | None:
    token_id: int | None = file.optional(f"tokenizer.ggml.{_SPECIAL_IDS[name]}_token_id", int)
    tokens, _ = _tokens(file)
    if token_id is None:
        return None
    if not 0 <= token_id < len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.{_SPECIAL_IDS[name]}_token_id {token_id} is not a token")
    return tokens[token_id]

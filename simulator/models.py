"""One model as numbers: how many weights a token passes through, and how much KV it leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from simulator.bounds import bound, bound_all
from simulator.hardware import WEIGHT_BYTES
from simulator.sourced import convert, known, read_numbers

FOLDER = Path(__file__).parent / "model_files"
MOST_SIZE = 100_000_000
MOST_LAYERS = 10_000


class Moe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts: a token passes `top_k` of `num_experts` of width `expert_size`, and what is shared.

    `dense_layers` at the start have none. Popularity is uneven: shares of tokens per expert follow a gamma law of
    shape `skew`, so `n` tokens reach `1 - (1 + n*top_k/(num_experts*skew))**-skew` of the experts.
    """

    num_experts: int
    top_k: int
    expert_size: int
    shared_size: int = 0
    dense_layers: int = 0
    skew: float = 0.85

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the number."""
        bound_all(self, "moe.", "num_experts", "expert_size", least=1, most=MOST_SIZE)
        bound_all(self, "moe.", "shared_size", "dense_layers", most=MOST_SIZE)
        bound("moe.top_k", self.top_k, 1, self.num_experts)
        bound("moe.skew", self.skew, 0.01, 1e6)

    def covered(self, tokens: float) -> float:
        """How many experts of a layer so many tokens reach."""
        missed: float = (1.0 + tokens * self.top_k / (self.num_experts * self.skew)) ** -self.skew
        return self.num_experts * (1.0 - missed)


class Mla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2): KV is one latent of `kv_rank + rope_dim` values a token and layer."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the number."""
        bound_all(self, "mla.", *self.__struct_fields__, least=1, most=MOST_SIZE)


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only transformer with gated MLPs. `dtype` is that of its weights; sizes are those of config.json."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    tied_embeddings: bool = False
    dtype: str = "bfloat16"
    moe: Moe | None = None
    mla: Mla | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the number."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                bound(f"model {self.name}: {name}", value, 1, MOST_LAYERS if name == "num_layers" else MOST_SIZE)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"model {self.name}: num_kv_heads must divide num_heads", param="model.num_kv_heads")
        if self.dtype not in WEIGHT_BYTES:
            raise ConfigError(f"model {self.name}: dtype must be one of {', '.join(WEIGHT_BYTES)}", param="model.dtype")
        if self.moe is not None and self.moe.dense_layers > self.num_layers:
            raise ConfigError(f"model {self.name}: more dense layers than layers", param="model.moe")

    @property
    def kv_values(self) -> int:
        """Values that a token leaves in each layer."""
        if self.mla is not None:
            return self.mla.kv_rank + self.mla.rope_dim
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def attention_params(self) -> int:
        """Weights of the projections of one layer."""
        size, heads, mla = self.hidden_size, self.num_heads, self.mla
        if mla is None:
            return size * self.head_dim * 2 * (heads + self.num_kv_heads)
        query = mla.q_rank * (size + heads * (mla.nope_dim + mla.rope_dim))
        return query + size * (mla.kv_rank + mla.rope_dim) + self.up_params + heads * mla.v_dim * size

    @property
    def up_params(self) -> int:
        """Weights that make keys and values of a latent (MLA; else none)."""
        mla = self.mla
        return 0 if mla is None else mla.kv_rank * self.num_heads * (mla.nope_dim + mla.v_dim)

    @property
    def dense_layers(self) -> int:
        """Layers with one MLP for all tokens."""
        return self.num_layers if self.moe is None else self.moe.dense_layers

    @property
    def mlp_params(self) -> int:
        """Weights of the MLP of a dense layer."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def shared_params(self) -> int:
        """Weights that every token passes in an MoE layer beside its experts: shared ones and the gate."""
        moe = self.moe
        return 0 if moe is None else self.hidden_size * (3 * moe.shared_size + moe.num_experts)

    @property
    def expert_params(self) -> int:
        """Weights of one expert."""
        return 0 if self.moe is None else 3 * self.hidden_size * self.moe.expert_size

    @property
    def head_params(self) -> int:
        """Weights of the output head, and of the embedding too unless they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """All weights (norms and biases are left out: below a thousandth)."""
        experts = 0 if self.moe is None else self.moe.num_experts
        return self._params(experts) + self.head_params * (1 if self.tied_embeddings else 2)

    @property
    def active_params(self) -> int:
        """Weights that one token passes through, the embedding's row lookup left out."""
        return self._params(0 if self.moe is None else self.moe.top_k) + self.head_params

    def _params(self, experts: int) -> int:
        sparse = self.num_layers - self.dense_layers
        dense = self.num_layers * self.attention_params + self.dense_layers * self.mlp_params
        return dense + sparse * (self.shared_params + experts * self.expert_params)


def model(name: str) -> Model:
    """A packaged model by its name, or a user's own by the path of its file. Raises `ConfigError`."""
    return convert(read_numbers(FOLDER, name, "model")[0], Model, "model", name)


def model_names() -> list[str]:
    """The packaged ones."""
    return known(FOLDER)

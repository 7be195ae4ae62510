"""Step times of a model on a kind of hardware, from both files: peaks and the shares of them that are reached.

    cost = {kind = "roofline", model = "codellama2-34b", hardware = "l20", tp = 4}

`experiments.published_rates` shows what it gives beside published figures.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from contracts.errors import ConfigError
from contracts.kv import DTYPE_BYTES
from scheduling.step_shape import StepShape
from simulator.hardware import WEIGHT_BYTES, Hardware, hardware
from simulator.models import Model, model
from simulator.stage_time import StageTime, reduce_times

ACTIVATION_BYTES = 2.0


class Roofline(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="roofline", tag_field="kind", dict=True
):
    """One replica: `tp` devices a stage, `pp` stages. Model and hardware by name, by the path of a file, or as tables.

    `dtype` of the weights is the model's own unless given; attention computes in `kv_dtype`.
    """

    model: str | Model
    hardware: str | Hardware
    tp: int = 1
    pp: int = 1
    dtype: str = ""
    kv_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        if isinstance(self.model, str):
            msgspec.structs.force_setattr(self, "model", model(self.model))
        if isinstance(self.hardware, str):
            msgspec.structs.force_setattr(self, "hardware", hardware(self.hardware))
        of, on = self.of, self.on
        if self.tp < 1 or of.num_heads % self.tp:
            raise ConfigError(f"tp {self.tp} must divide the {of.num_heads} heads of {of.name}", param="tp")
        if of.mla is None and max(self.tp, of.num_kv_heads) % min(self.tp, of.num_kv_heads):
            raise ConfigError(
                f"tp {self.tp} must divide the {of.num_kv_heads} KV heads of {of.name}, or be a multiple", param="tp"
            )
        if self.tp > on.max_devices:
            raise ConfigError(f"tp {self.tp} is more than the {on.max_devices} {on.name} of a node", param="tp")
        if not 1 <= self.pp <= of.num_layers:
            raise ConfigError(
                f"pp {self.pp} must lie between 1 and the {of.num_layers} layers of {of.name}", param="pp"
            )
        if self.kv_dtype not in DTYPE_BYTES:
            raise ConfigError(f"kv_dtype must be one of {', '.join(DTYPE_BYTES)}", param="kv_dtype")
        on.peak_flop_s(self.weight_dtype)
        on.peak_flop_s(self.kv_dtype)

    @property
    def of(self) -> Model:
        """The model's numbers."""
        assert isinstance(self.model, Model)
        return self.model

    @property
    def on(self) -> Hardware:
        """The hardware's numbers."""
        assert isinstance(self.hardware, Hardware)
        return self.hardware

    @property
    def weight_dtype(self) -> str:
        """What the weights are kept and multiplied in."""
        return self.dtype or self.of.dtype

    def stage_layers(self) -> tuple[int, ...]:
        """How many layers each stage holds: the first ones one more where they do not divide evenly."""
        each, more = divmod(self.of.num_layers, self.pp)
        return tuple(each + (stage < more) for stage in range(self.pp))

    def stage_kv_bytes(self, layers: int) -> float:
        """What a token leaves on one device of a stage: KV heads are repeated when there are fewer of them than
        devices; a latent (MLA) is repeated on all."""
        of = self.of
        heads = max(1.0, of.num_kv_heads / self.tp)
        values = of.kv_values if of.mla is not None else 2.0 * heads * of.head_dim
        return layers * values * DTYPE_BYTES[self.kv_dtype]

    def stage_weight_bytes(self, stage: int) -> float:
        """Weights on one device of a stage; the first holds the embedding, the last one the head."""
        of = self.of
        params, sparse = self._stage_params(stage)
        if of.moe is not None:
            params += sparse * of.moe.num_experts * of.expert_params
        ends = {0, self.pp - 1} if of.tied_embeddings else ()
        heads = int(stage in ends) if of.tied_embeddings else int(stage == 0) + int(stage == self.pp - 1)
        return (params + heads * of.head_params) * WEIGHT_BYTES[self.weight_dtype] / self.tp

    @cached_property
    def stages(self) -> tuple[StageTime, ...]:
        """The stages as times, in order."""
        return tuple(self._stage(stage) for stage in range(self.pp))

    def stage_times_s(self, shape: StepShape) -> tuple[float, ...]:
        """How long a batch is in each stage, in seconds."""
        return tuple([stage.step_s(shape) for stage in self.stages])

    def hop_s(self, shape: StepShape) -> float:
        """How long its activations take from one stage to the next, in seconds."""
        on = self.on
        sent = shape.tokens * self.of.hidden_size * ACTIVATION_BYTES
        return on.link_latency_s + sent / (on.link_bytes_s * on.link_share)

    def step_s(self, shape: StepShape) -> float:
        """See `simulator.cost.StepTimes`: from the first stage's begin to the last one's end."""
        stages = self.stages
        if len(stages) == 1:
            return stages[0].step_s(shape)
        return sum([stage.step_s(shape) for stage in stages]) + (len(stages) - 1) * self.hop_s(shape)

    def _stage_params(self, stage: int) -> tuple[int, int]:
        """Weights of a stage that every token passes, on all its devices, without embedding and head; and how many of
        its layers have experts beside them."""
        of, layers = self.of, self.stage_layers()
        dense = max(0, min(of.dense_layers - sum(layers[:stage]), layers[stage]))
        sparse = layers[stage] - dense
        return layers[stage] * of.attention_params + dense * of.mlp_params + sparse * of.shared_params, sparse

    def _stage(self, stage: int) -> StageTime:
        of, on, tp = self.of, self.on, self.tp
        weight_bytes = WEIGHT_BYTES[self.weight_dtype]
        flop_s = on.peak_flop_s(self.weight_dtype) * on.compute_share * tp
        pair_flop_s = on.peak_flop_s(self.kv_dtype) * on.attention_share * tp
        read_bytes_s = on.memory_bytes_s * on.memory_share
        layers = self.stage_layers()[stage]
        params, sparse = self._stage_params(stage)
        head = of.head_params if stage == self.pp - 1 else 0
        chunk_flop, decode_flop = _pair_flop(of)
        reduce_s, latency_s = reduce_times(on, tp, layers, of.hidden_size * ACTIVATION_BYTES)
        return StageTime(
            tile=on.tile_tokens,
            read_s=params * weight_bytes / tp / read_bytes_s,
            row_s=2.0 * params / flop_s,
            head_read_s=head * weight_bytes / tp / read_bytes_s,
            head_row_s=2.0 * head / flop_s,
            chunk_pair_s=layers * chunk_flop / pair_flop_s,
            decode_pair_s=layers * decode_flop / pair_flop_s,
            kv_s=self.stage_kv_bytes(layers) / read_bytes_s,
            up_row_s=2.0 * layers * of.up_params / flop_s,
            reduce_s=reduce_s,
            reduce_latency_s=latency_s,
            launch_s=on.launch_s,
            decode_row_s=on.row_s,
            kernels_s=layers * on.layer_launch_s,
            moe=of.moe if sparse else None,
            moe_layers=sparse,
            expert_read_s=of.expert_params * weight_bytes / tp / read_bytes_s,
            expert_row_s=2.0 * of.expert_params / flop_s,
        )


def _pair_flop(of: Model) -> tuple[float, float]:
    """Operations of attention for a pair of a token and a token of its context, in one layer: in a chunk, in a decode
    row. With MLA a chunk expands keys and values, a decode row attends to the latent itself (DeepSeek-V2)."""
    if of.mla is None:
        flop = 4.0 * of.num_heads * of.head_dim
        return flop, flop
    mla = of.mla
    expanded = 2.0 * of.num_heads * (mla.nope_dim + mla.rope_dim + mla.v_dim)
    return expanded, 2.0 * of.num_heads * (2 * mla.kv_rank + mla.rope_dim)

"""`NativeCpuExecutor`: the decoder on compiled CPU kernels, in fp32 or int8, one C call for a range of layers.

Int8 means the weights: activations are 16-bit integers in two int8 planes, so that only the weights' rounding shows.

A row's result is bitwise the same whatever else is in the batch, however its prompt is chunked, and however many
threads work: see `cpu_kernels/gemm_f32.h` and `attention.h`.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch.nn import functional

from contracts.engine import OnLayerDone
from contracts.errors import ConfigError, EngineFailure
from contracts.model import ModelSpec
from engine import native_abi as abi
from engine.executor import StepInputs
from engine.kv_cache import KVCache
from engine.native_compile import native_kernels
from engine.native_inputs import check_step
from engine.native_weights import PackedDecoder
from engine.rope import RopeTable
from engine.weights import DecoderWeights

_HEAD_DIM_STEP = 8


def native_supports(spec: ModelSpec, kv_cache: KVCache) -> str | None:
    """None when the kernels can run this model on this cache, else the reason."""
    layout = kv_cache.layout
    if layout.dtype != "float32" or any(cache.device.type != "cpu" for cache in kv_cache.layers):
        return f"the kernels need a float32 KV cache on the CPU, not {layout.dtype}"
    if spec.head_dim % _HEAD_DIM_STEP:
        return f"head_dim {spec.head_dim} is not a multiple of {_HEAD_DIM_STEP}"
    if spec.num_heads % spec.num_kv_heads:
        return f"{spec.num_heads} query heads do not divide over {spec.num_kv_heads} KV heads"
    return None


class NativeCpuExecutor:
    """A `LayerExecutor` on compiled kernels. Threads: torch's intra-op count at construction.

    Called from one thread at a time; the GIL is free while a step runs. Raises `NativeKernelError` without kernels,
    `ConfigError` for a model that they cannot run.
    """

    def __init__(
        self, weights: DecoderWeights, spec: ModelSpec, rope: RopeTable, kv_cache: KVCache, quantization: str = "none"
    ) -> None:
        reason = native_supports(spec, kv_cache)
        if reason is not None:
            raise ConfigError(reason, param="executor")
        self._kernels = native_kernels()
        self._spec = spec
        self._kv_cache = kv_cache
        self._max_context = rope.cos.shape[0]
        self._num_threads = torch.get_num_threads()
        self._embedding = weights.embedding
        self._packed = PackedDecoder(
            weights,
            spec,
            rope,
            kv_cache.layers,
            kv_cache.layout.block_size,
            is_int8=quantization == "int8",
            num_threads=self._num_threads,
        )
        self._model = ctypes.addressof(self._packed.model)
        self._workspace = self._kernels.ps_workspace_new()
        weakref.finalize(self, self._kernels.ps_workspace_free, self._workspace)
        self._checked: tuple[StepInputs, abi.Step] | None = None

    def embed(self, inputs: StepInputs) -> torch.Tensor:
        """Token embeddings, float32 [N, hidden_size]."""
        return functional.embedding(inputs.token_ids, self._embedding).float()

    def run_layers(
        self,
        hidden: torch.Tensor,
        inputs: StepInputs,
        first: int,
        last: int,
        on_layer_done: OnLayerDone | None = None,
    ) -> torch.Tensor:
        """Layers `first` to `last - 1`, in place if `hidden` is contiguous. Raises `EngineFailure` for bad inputs.

        The kernels call `on_layer_done` back from within the range, and only that call takes the GIL. What it raises is
        raised when the layers are done; the later layers are not announced.
        """
        if not 0 <= first <= last <= self._spec.num_layers:
            raise EngineFailure(f"layers {first} to {last - 1} of {self._spec.num_layers}")
        step = self._step(inputs)
        hidden = self._rows(hidden)
        if hidden.shape[0] != step.num_rows:
            raise EngineFailure(f"{hidden.shape[0]} hidden rows for a step of {step.num_rows}")
        announce = _Announcement(on_layer_done)
        self._done(
            self._kernels.ps_run_layers(
                self._model,
                ctypes.addressof(step),
                self._workspace,
                hidden.data_ptr(),
                first,
                last,
                self._num_threads,
                announce.for_c,
            )
        )
        announce.reraise()
        return hidden

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Final norm and lm_head: float32 [R, vocab_size]."""
        rows = self._rows(rows)
        out = torch.empty(rows.shape[0], self._spec.vocab_size, dtype=torch.float32)
        if rows.shape[0]:
            self._done(
                self._kernels.ps_logits(
                    self._model, self._workspace, rows.data_ptr(), rows.shape[0], out.data_ptr(), self._num_threads
                )
            )
        return out

    def _rows(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.ndim != 2 or hidden.shape[1] != self._spec.hidden_size or hidden.device.type != "cpu":
            raise EngineFailure(f"hidden must be [rows, {self._spec.hidden_size}] on the CPU, not {list(hidden.shape)}")
        return hidden.to(torch.float32).contiguous()

    def _step(self, inputs: StepInputs) -> abi.Step:
        """The step as the kernels want it, checked at its first layer range only."""
        if self._checked is None or self._checked[0] is not inputs:
            check_step(inputs, self._kv_cache.layout.block_size, self._kv_cache.num_blocks, self._max_context)
            step = abi.Step(
                num_rows=inputs.positions.shape[0],
                num_sequences=inputs.context_len.shape[0],
                max_blocks=inputs.block_table.shape[1],
                positions=inputs.positions.data_ptr(),
                query_start=inputs.query_start.data_ptr(),
                context_len=inputs.context_len.data_ptr(),
                block_table=inputs.block_table.data_ptr(),
                slots=inputs.slots.data_ptr(),
            )
            self._checked = (inputs, step)
        return self._checked[1]

    def _done(self, code: int) -> None:
        if code:
            raise EngineFailure("the CPU kernels ran out of memory")


class _Announcement:
    """Carries `on_layer_done` through C, which no exception may cross."""

    def __init__(self, on_layer_done: OnLayerDone | None) -> None:
        self._on_layer_done = on_layer_done
        self._error: Exception | None = None
        self.for_c = abi.OnLayerDone() if on_layer_done is None else abi.OnLayerDone(self._call)

    def _call(self, layer: int) -> None:
        if self._on_layer_done is None or self._error is not None:
            return
        try:
            self._on_layer_done(layer)
        except Exception as error:  # noqa: BLE001 - the boundary to C: what crossed it would be printed and lost
            self._error = error

    def reraise(self) -> None:
        """Raise what the call raised."""
        if self._error is not None:
            raise self._error

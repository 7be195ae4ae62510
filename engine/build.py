"""From a configuration to a running engine: the one place that picks device, dtype and executor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from contracts.engine import Engine
from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.attention import SdpaAttention
from engine.checkpoint.resolve import resolve_model
from engine.config import EngineConfig
from engine.executor import LayerExecutor
from engine.kv_cache import TORCH_DTYPES, KVCache
from engine.kv_sizing import choose_num_blocks
from engine.linear import choose_linear
from engine.native_compile import native_available
from engine.native_executor import NativeCpuExecutor, native_supports
from engine.rope import RopeTable, build_rope_table
from engine.rotation import rotate_for_int8
from engine.sampling.sampler import Sampler
from engine.torch_engine import TorchEngine
from engine.torch_executor import TorchExecutor
from engine.weights import DecoderWeights, load_weights

logger = logging.getLogger(__name__)


def build_engine(config: EngineConfig) -> Engine:
    """Load the model that `config` names and make it ready for its first step.

    Raises `ModelError` for a model that cannot be served and `ConfigError` for a setting that does not fit it or this
    machine.
    """
    files = resolve_model(config.model)
    sampler = Sampler(files.spec.vocab_size, files.spec.eos_token_ids, config.seed)
    return assemble_engine(files.spec, files.weight_files, config, sampler)


def assemble_engine(
    spec: ModelSpec,
    weight_files: Sequence[Path],
    config: EngineConfig,
    sampler: Sampler,
) -> TorchEngine:
    """Like `build_engine`, for a model that is already resolved and a sampler that exists."""
    device = _device(config)
    dtype = _dtype(config, device)
    if config.threads:
        torch.set_num_threads(config.threads)
    max_context = _max_context(config, spec)
    weights = load_weights(spec, weight_files, device, TORCH_DTYPES[dtype])
    rope = build_rope_table(spec, max_context, device)
    layout = KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=config.block_size,
        dtype=dtype,
    )
    kv_cache = KVCache(layout, choose_num_blocks(config, layout, device), device, touch=config.prefault)
    executor, name = _executor(config, weights, spec, rope, kv_cache, device)
    capacity = kv_cache.num_blocks * layout.block_size
    held = msgspec.structs.replace(spec, max_context=min(max_context, capacity))
    logger.info(
        "engine: %s on %s with the %s executor, %s weights, KV for %d tokens in %s, context %d of the model's %d",
        spec.name,
        device,
        name,
        config.quantization if config.quantization != "none" else dtype,
        capacity,
        layout.dtype,
        held.max_context,
        spec.max_context,
    )
    numerics = f"{config.quantization} weights, {name} executor"
    return TorchEngine(held, executor, kv_cache, sampler, device=device, numerics=numerics)


def _device(config: EngineConfig) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise ConfigError(f"device {config.device!r}: {error}", param="device") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {config.device!r}: this machine has {torch.cuda.device_count()} CUDA devices", param="device"
        )
    return device


def _dtype(config: EngineConfig, device: torch.device) -> str:
    if config.dtype != "auto":
        return config.dtype
    return "float32" if device.type == "cpu" else "bfloat16"


def _max_context(config: EngineConfig, spec: ModelSpec) -> int:
    """The model's own context, or less if configured; with dynamic rope scaling up to `factor` times its own."""
    scaling = spec.rope_scaling
    limit = int(spec.max_context * scaling.factor) if scaling.rope_type == "dynamic" else spec.max_context
    if config.max_context > limit:
        raise ConfigError(
            f"max_context {config.max_context} is over what {spec.name} can position ({limit})", param="max_context"
        )
    return config.max_context or spec.max_context


def _executor(
    config: EngineConfig,
    weights: DecoderWeights,
    spec: ModelSpec,
    rope: RopeTable,
    kv_cache: KVCache,
    device: torch.device,
) -> tuple[LayerExecutor, str]:
    if config.executor != "torch":
        reason = native_supports(spec, kv_cache) or native_available()
        if reason is None:
            return NativeCpuExecutor(weights, spec, rope, kv_cache, config.quantization), "native"
        if config.executor == "native":
            raise ConfigError(f"executor native: {reason}", param="executor")
        slower = device.type == "cpu"
        logger.log(logging.WARNING if slower else logging.INFO, "no native executor: %s", reason)
    if config.quantization == "int8":
        # Its activations have 8 bits, one scale a row. The native executor's have 16 and gain nothing by a rotation.
        weights = rotate_for_int8(weights, spec)
    make_linear = choose_linear(device, TORCH_DTYPES[kv_cache.layout.dtype], config.quantization)
    attention = SdpaAttention(kv_cache.layout.block_size)
    return TorchExecutor(weights, spec, rope, kv_cache, make_linear, attention), "torch"

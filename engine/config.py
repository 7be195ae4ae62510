"""What can be set about one engine. Built once at the entry point, checked when built."""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.errors import ConfigError

DeviceDtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8"]
ExecutorChoice = Literal["auto", "torch", "native"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. 0 means "choose for me".

    `model` is a built-in name, a directory or a GGUF file. `device` is "auto" (CUDA when there is one), "cpu" or
    "cuda[:index]". `dtype` "auto" is float32 on a CPU and bfloat16 on CUDA. The KV cache gets `num_blocks` blocks, or
    as many as fit into `kv_bytes`, or a share of the free memory. `max_context` (tokens) lowers the model's own.
    `threads` is torch's intra-op thread count. `seed` is used by requests that name none.
    `prefault` makes a CPU's whole KV memory resident at start (0.1 to 3 s per GB) instead of page by page at first
    use. Off by default, because it is memory that a lightly loaded replica may never need. On is right for a replica
    that takes KV in: receiving into untouched memory costs several times the CPU of the copy, once per page.
    Raises `ConfigError` naming the setting.
    """

    model: str = "smollm2-135m"
    device: str = "auto"
    dtype: DeviceDtype = "auto"
    quantization: Quantization = "none"
    executor: ExecutorChoice = "auto"
    block_size: int = 16
    num_blocks: int = 0
    kv_bytes: int = 0
    max_context: int = 0
    threads: int = 0
    seed: int = 0
    prefault: bool = False

    def __post_init__(self) -> None:
        for name in ("num_blocks", "kv_bytes", "max_context", "threads", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, but is {getattr(self, name)}", param=name)
        if not 1 <= self.block_size <= 256:
            raise ConfigError(f"block_size must lie between 1 and 256, but is {self.block_size}", param="block_size")
        if not self.model:
            raise ConfigError("model is empty: name a built-in model, a directory or a GGUF file", param="model")
        if self.num_blocks and self.kv_bytes:
            raise ConfigError("set num_blocks or kv_bytes, not both", param="num_blocks")
        kind = self.device.partition(":")[0]
        if kind not in {"auto", "cpu", "cuda"}:
            raise ConfigError(f"device must be auto, cpu or cuda[:index], but is {self.device!r}", param="device")
        self._check_choices()

    def _check_choices(self) -> None:
        """Types are not checked by the constructor, only by a decoder: check the closed sets here for both ways."""
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                allowed = ", ".join(choices)
                raise ConfigError(f"{name} must be one of {allowed}, but is {getattr(self, name)!r}", param=name)


_CHOICES = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantization": ("none", "int8"),
    "executor": ("auto", "torch", "native"),
}

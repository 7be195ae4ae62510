"""How many KV blocks an engine gets."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from contracts.errors import ConfigError
from contracts.kv import KVLayout
from engine.config import EngineConfig

logger = logging.getLogger(__name__)

_CPU_DEFAULT_BYTES = 2 << 30
_CPU_SHARE = 0.4
_CUDA_SHARE = 0.85
_CUDA_ACTIVATION_BYTES = 1 << 30
_MEMINFO = Path("/proc/meminfo")


def choose_num_blocks(config: EngineConfig, layout: KVLayout, device: torch.device) -> int:
    """Blocks by `num_blocks`, by `kv_bytes`, or by the memory that is free now that the weights are loaded.

    Raises `ConfigError` when not even one block fits.
    """
    if config.num_blocks:
        return config.num_blocks
    budget = config.kv_bytes or _free_share_bytes(device)
    num_blocks = budget // (layout.bytes_per_token * layout.block_size)
    if num_blocks < 1:
        raise ConfigError(
            f"kv_bytes: {budget} bytes hold no block ({layout.block_size} tokens of {layout.bytes_per_token} bytes)",
            param="kv_bytes",
        )
    return num_blocks


def _free_share_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(0, int(free * _CUDA_SHARE) - _CUDA_ACTIVATION_BYTES)
    return min(_CPU_DEFAULT_BYTES, int(available_memory_bytes() * _CPU_SHARE))


def available_memory_bytes() -> int:
    """Memory that can be had without swapping, page cache included where the system tells."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

"""Every model on every hardware that holds it, with published tensor parallelism or the least that fits."""

from __future__ import annotations

import msgspec

from contracts.errors import ConfigError
from scheduling.fleet_capacity import Site
from simulator.cost import believed_of
from simulator.deployment import Deployment

MODELS = (
    *("llama-30b", "codellama2-34b", "qwen2-72b", "llama-3-8b", "llama-3-70b"),
    *("qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "deepseek-v3", "smollm2-135m"),
)
HARDWARE = ("l20", "a800", "a100-40", "a100-80", "h100", "h200", "b200", "rtx-5090")
PUBLISHED_TP = {
    **{(model, "l20"): 4 for model in ("llama-30b", "codellama2-34b")},
    **{(model, card): 2 for model in ("llama-30b", "codellama2-34b") for card in ("a800", "h100")},
    ("qwen2-72b", "l20"): 8,
    ("qwen2-72b", "a800"): 4,
    ("qwen2-72b", "h100"): 4,
}
"""EcoServe (OSDI'26), its table of models and clusters."""
LEAST_KV_TOKENS = 32_768
"""With room for less KV nobody would serve a model: one more doubling of the devices then."""
MAX_RUNNING = 512
CHUNK = 2048


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one hardware. `why_not` when no node of that hardware holds it."""

    model: str
    hardware: str
    tp: int = 0
    deployment: Deployment | None = None
    why_not: str = ""

    @property
    def attention(self) -> str:
        """MHA, GQA or MLA."""
        assert self.deployment is not None
        of = self.deployment.cost.of
        if of.mla is not None:
            return "MLA"
        return "MHA" if of.num_heads == of.num_kv_heads else "GQA"


def place(model: str, hardware: str) -> Place:
    """With the published tensor parallelism, else the least that leaves room for `LEAST_KV_TOKENS` tokens."""
    why = ""
    for tp in [PUBLISHED_TP[model, hardware]] if (model, hardware) in PUBLISHED_TP else (1, 2, 4, 8):
        try:
            there = Deployment(model=model, hardware=hardware, tp=tp, chunk_tokens=CHUNK)
        except ConfigError as error:
            why = str(error)
            continue
        if there.num_blocks * there.block_size >= LEAST_KV_TOKENS or (model, hardware) in PUBLISHED_TP:
            return Place(model=model, hardware=hardware, tp=tp, deployment=there)
        why = f"room for {there.num_blocks * there.block_size} tokens of KV only"
    return Place(model=model, hardware=hardware, why_not=why)


def site_of(deployment: Deployment, link_bytes_per_s: float) -> Site:
    """As the planner reckons with it. Steps cost what a profile at load would find."""
    return Site(
        cost=believed_of(deployment.cost),
        prefill_chunk=CHUNK,
        kv_tokens=deployment.num_blocks * deployment.block_size,
        max_running=MAX_RUNNING,
        kv_bytes_per_token=deployment.kv_bytes_per_token,
        num_layers=deployment.kv.num_layers,
        link_bytes_per_s=link_bytes_per_s,
    )

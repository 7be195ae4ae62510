"""The C boundary of `cpu_kernels` (model.h, decoder.cpp) in ctypes. Pointers are addresses; callers keep the owners."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Any, ClassVar

ABI_VERSION = 2

OnLayerDone = ctypes.CFUNCTYPE(None, c_int64)
"""A Python function of a layer's index, as C calls it; `OnLayerDone()` is null. It must not raise."""

_Fields = list[tuple[str, Any]]


class Linear(ctypes.Structure):
    """Packed weights [n, k]; `scales` and `offsets` are null in fp32."""

    _fields_: ClassVar[_Fields] = [
        *((name, c_void_p) for name in ("panels", "scales", "offsets", "bias")),
        ("n", c_int64),
        ("k", c_int64),
    ]


class Layer(ctypes.Structure):
    """One decoder layer and its KV cache."""

    _fields_: ClassVar[_Fields] = [
        *((name, c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((name, Linear) for name in ("qkv", "o", "gate_up", "down")),
        ("cache", c_void_p),
    ]


class Model(ctypes.Structure):
    """A whole decoder. `layers` points at an array of `num_layers` Layer."""

    _fields_: ClassVar[_Fields] = [
        *(
            (name, c_int64)
            for name in ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "block_size")
        ),
        ("norm_eps", c_float),
        ("is_int8", c_int32),
        ("layers", c_void_p),
        ("final_norm", c_void_p),
        ("lm_head", Linear),
        ("cosine", c_void_p),
        ("sine", c_void_p),
    ]


class Step(ctypes.Structure):
    """One flattened batch."""

    _fields_: ClassVar[_Fields] = [
        *((name, c_int64) for name in ("num_rows", "num_sequences", "max_blocks")),
        *((name, c_void_p) for name in ("positions", "query_start", "context_len", "block_table", "slots")),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ps_abi_version": (c_int32, []),
    "ps_panel_columns": (c_int64, []),
    "ps_padded_k": (c_int64, [c_int64]),
    "ps_advise_huge": (None, [c_void_p, c_int64]),
    "ps_workspace_new": (c_void_p, []),
    "ps_workspace_free": (None, [c_void_p]),
    "ps_pack_f32": (None, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int32]),
    "ps_pack_i8": (None, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p, c_int32]),
    "ps_run_layers": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int32, OnLayerDone]),
    "ps_logits": (c_int32, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int32]),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set result and argument types of every function. Raises AttributeError for one that is missing."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library

"""Linear layers `x @ weight.T + bias` behind one callable, with the back end chosen once at load.

On a CPU at 2 to 64 rows a weight that is already in oneDNN's blocked format is up to 4 times faster than `F.linear`,
which reads (or packs) the plain matrix anew at each call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch.nn import functional

from engine.int8_linear import int8_linear

logger = logging.getLogger(__name__)

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x [rows, in] -> [rows, out], a fresh tensor in the dtype of x."""

MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]
"""(weight [out, in], bias [out] or None) -> Linear. The weight may be released afterwards."""

_PACK_HINT_ROWS = 16  # the row count that oneDNN lays the weight out for; other counts work as well


def choose_linear(device: torch.device, dtype: torch.dtype, quantization: str) -> MakeLinear:
    """The fastest back end that works on this device, tried once; the choice is logged."""
    if quantization == "int8":
        return int8_linear(device)
    if device.type == "cpu" and dtype == torch.float32:
        reason = _why_no_packed_weights()
        if reason is None:
            logger.info("linear back end: oneDNN, prepacked float32 weights")
            return packed_linear
        logger.warning("linear back end: F.linear, because prepacked weights do not work here: %s", reason)
    return plain_linear


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """`F.linear`: any device, any dtype."""
    return lambda x: functional.linear(x, weight, bias)


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """oneDNN on a weight packed once. CPU, float32. These are private torch ops: probe them before use."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_HINT_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _why_no_packed_weights() -> str | None:
    if not torch._C._has_mkldnn:
        return "this torch has no oneDNN"
    weight, bias, x = torch.randn(24, 40), torch.randn(24), torch.randn(3, 40)
    try:
        got = packed_linear(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError) as error:
        return str(error)
    worst = (got - functional.linear(x, weight, bias)).abs().max().item()
    return None if worst < 1e-4 else f"the result is off by {worst}"

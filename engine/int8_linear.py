"""Int8 linear layers: symmetric per-channel weight scales, activations quantised row by row as they come.

One scale per row (and not per tensor) costs nothing extra, is more accurate, and makes a row's result independent of
what else is in the batch: the integer sums are exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

logger = logging.getLogger(__name__)

_INT8_MAX = 127

_MultiplyInt8 = Callable[[torch.Tensor], torch.Tensor]
"""int8 [rows, in] -> [rows, out] float32: integer product, times the weight scales."""

_MakeMultiply = Callable[[torch.Tensor, torch.Tensor], _MultiplyInt8]
"""(weight int8 [out, in], scales float32 [out]) -> product."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [rows, n] as int8 and float32 scales [rows, 1] with `x ~ int8 * scale`; a row of zeros gets a tiny scale."""
    scales = x.float().abs().amax(dim=-1, keepdim=True).div_(_INT8_MAX).clamp_(min=torch.finfo(torch.float32).tiny)
    return (x / scales).round_().to(torch.int8), scales


def int8_linear(device: torch.device) -> Callable[[torch.Tensor, torch.Tensor | None], _MultiplyInt8]:
    """The fastest integer product whose sums are exact on this device; the choice is logged."""
    make, name = _choose_multiply(device)
    logger.info("linear back end: int8, %s", name)

    def make_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> _MultiplyInt8:
        quantized, scales = quantize_rows(weight)
        multiply = make(quantized, scales.flatten())

        def linear(x: torch.Tensor) -> torch.Tensor:
            rows, row_scales = quantize_rows(x)
            out = multiply(rows).mul_(row_scales)
            return (out if bias is None else out.add_(bias)).to(x.dtype)

        return linear

    return make_linear


def _choose_multiply(device: torch.device) -> tuple[_MakeMultiply, str]:
    if device.type == "cpu":
        for make, name in ((_onednn_multiply, "oneDNN prepacked"), (_int_mm_multiply, "torch._int_mm")):
            if _is_exact(make):
                return make, name
    return _dequantizing_multiply, "weights dequantised at use (no int8 kernel for this device)"


def _onednn_multiply(weight: torch.Tensor, scales: torch.Tensor) -> _MultiplyInt8:
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    zero_points = torch.zeros(weight.shape[0], dtype=torch.int64)
    call = torch.ops.onednn.qlinear_pointwise.default
    return lambda x: call(x, 1.0, 0, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], "")


def _int_mm_multiply(weight: torch.Tensor, scales: torch.Tensor) -> _MultiplyInt8:
    transposed = weight.t()
    return lambda x: torch._int_mm(x, transposed).float().mul_(scales)


def _dequantizing_multiply(weight: torch.Tensor, scales: torch.Tensor) -> _MultiplyInt8:
    return lambda x: torch.mm(x.float(), weight.float().t()).mul_(scales)


def _is_exact(make: _MakeMultiply) -> bool:
    """Extreme values included: kernels for CPUs without VNNI may saturate sums of two products at 16 bits."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (32, 64), dtype=torch.int8, generator=generator)
    x = torch.randint(-127, 128, (5, 64), dtype=torch.int8, generator=generator)
    weight[:3], x[:2] = torch.tensor([[127], [-127], [127]], dtype=torch.int8), 127
    x[1] = -127
    try:
        got = make(weight, torch.ones(32))(x)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info("an int8 product is not usable here: %s", error)
        return False
    return torch.equal(got, (x.long() @ weight.long().t()).float())

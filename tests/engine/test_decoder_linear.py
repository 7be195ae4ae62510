"""Every linear back end gives `x @ W.T + b`; int8 is exact in its sums and independent of the rest of the batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from engine import int8_linear, linear
from engine.linear import MakeLinear, choose_linear, plain_linear

CPU = torch.device("cpu")
INT8_PRODUCTS = [int8_linear._onednn_multiply, int8_linear._int_mm_multiply, int8_linear._dequantizing_multiply]


def problem(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = ((rows, 64), (96, 64), (96,))
    return (
        torch.randn(x, generator=generator),
        torch.randn(weight, generator=generator),
        torch.randn(bias, generator=generator),
    )


@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("make", [plain_linear, choose_linear(CPU, torch.float32, "none")])
def test_float_back_ends(make: MakeLinear, rows: int) -> None:
    x, weight, bias = problem(rows)
    torch.testing.assert_close(make(weight, bias)(x), functional.linear(x, weight, bias), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(make(weight, None)(x), functional.linear(x, weight), atol=1e-4, rtol=1e-5)


def test_packed_back_end_falls_back_when_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "packed_linear", lambda weight, bias: lambda x: torch.zeros(x.shape[0], len(weight)))
    assert choose_linear(CPU, torch.float32, "none") is plain_linear
    assert "off by" in caplog.text


def test_packed_back_end_falls_back_when_the_operator_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(weight: torch.Tensor, bias: torch.Tensor | None) -> linear.Linear:
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear, "packed_linear", gone)
    assert choose_linear(CPU, torch.float32, "none") is plain_linear


def test_half_precision_uses_the_plain_back_end() -> None:
    assert choose_linear(CPU, torch.bfloat16, "none") is plain_linear


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_int8_is_close_to_float(rows: int) -> None:
    x, weight, bias = problem(rows)
    got = choose_linear(CPU, torch.float32, "int8")(weight, bias)(x)
    want = functional.linear(x, weight, bias)
    assert float((got - want).norm() / want.norm()) < 0.02


@pytest.mark.parametrize("product", INT8_PRODUCTS)
def test_int8_products_agree(
    product: int8_linear._MakeMultiply,
) -> None:
    if product is not int8_linear._dequantizing_multiply and not int8_linear._is_exact(product):
        pytest.skip("this CPU or torch has no exact kernel of that kind")
    x, weight, _ = problem(9)
    quantized, scales = int8_linear.quantize_rows(weight)
    rows, _ = int8_linear.quantize_rows(x)
    want = (rows.long() @ quantized.long().t()).float() * scales.flatten()
    torch.testing.assert_close(product(quantized, scales.flatten())(rows), want, atol=0, rtol=1e-6)


def test_int8_row_does_not_depend_on_its_batch() -> None:
    x, weight, bias = problem(40)
    multiply = choose_linear(CPU, torch.float32, "int8")(weight, bias)
    alone = multiply(x[3:4])
    x[4:] *= 1000
    assert torch.equal(multiply(x)[3:4], alone)


def test_int8_keeps_zero_rows_and_large_values() -> None:
    _, weight, bias = problem(2)
    make = choose_linear(CPU, torch.float32, "int8")
    x = torch.stack((torch.zeros(64), torch.full((64,), 1e30)))
    got = make(weight, bias)(x)
    torch.testing.assert_close(got[0], bias)
    assert bool(got.isfinite().all())


def test_int8_passes_nan_on() -> None:
    x, weight, _ = problem(2)
    x[0, 5] = float("nan")
    got = choose_linear(CPU, torch.float32, "int8")(weight, None)(x)
    assert bool(got[0].isnan().all())
    assert bool(got[1].isfinite().all())


def test_unusable_int8_kernels_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(weight: torch.Tensor, scales: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: (x.float() @ weight.float().t()).clamp(-32768, 32767)

    monkeypatch.setattr(int8_linear, "_onednn_multiply", saturating)
    _, name = int8_linear._choose_multiply(CPU)
    assert name == "torch._int_mm"

"""Row operations of the Triton kernels, against PyTorch."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
import torch.nn.functional as F
from inferx_kernels.fp8 import Quantized, quantize_rows
from inferx_kernels.triton.rows import LateScales, norm_rows, silu_mul_rows
from torch import Tensor

ROWS, WIDTH = 3, 72
E4M3_ROUNDING = 0.04  # half of the last of 3 bits, relative
STEPS_APART = 1 if cases.ON_GPU else 0  # steps of e4m3: a GPU divides approximately


def value(result: Tensor | Quantized) -> Tensor:
    if isinstance(result, Quantized):
        assert float(result.x.float().abs().max()) == 448
        return result.x.float() * result.scale.unsqueeze(1)
    return result


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("quantize", [False, True])
def test_norm_with_residual_late_scales_and_quantization(
    adds: bool, is_late: bool, quantize: bool
) -> None:
    x, weight = cases.randn(ROWS, WIDTH), cases.rand(WIDTH, dtype=torch.bfloat16)
    residual = cases.randn(ROWS, WIDTH) if adds else None
    late = LateScales(cases.rand(ROWS), cases.rand(WIDTH)) if is_late else None
    wanted = x.float()
    if late is not None:
        wanted = wanted * late.x.unsqueeze(1) * late.weight
    if residual is not None:
        wanted = wanted + residual.float()
    y = norm_rows(x, weight, 1e-5, residual=residual, late=late, quantize=quantize)
    if residual is not None:
        assert cases.distance(residual, wanted) < cases.ROUNDING
    wanted = F.rms_norm(wanted, (WIDTH,), weight.float(), 1e-5)
    assert cases.distance(value(y), wanted) < (E4M3_ROUNDING if quantize else cases.ROUNDING)


def test_quantization_alone_is_the_references() -> None:
    x = cases.randn(ROWS, WIDTH)
    got, expected = norm_rows(x, None, 0.0, quantize=True), quantize_rows(x)
    assert isinstance(got, Quantized)
    torch.testing.assert_close(got.scale, expected.scale, rtol=1e-6, atol=0)
    apart = (got.x.view(torch.uint8).int() - expected.x.view(torch.uint8).int()).abs()
    assert int(apart.max()) <= STEPS_APART


def test_a_row_of_zeros_quantizes_to_zeros() -> None:
    y = norm_rows(torch.zeros(1, WIDTH, device=cases.DEVICE), None, 0.0, quantize=True)
    assert isinstance(y, Quantized)
    assert not y.x.float().any()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("quantize", [False, True])
def test_gated_activation(is_late: bool, quantize: bool) -> None:
    gate_up = cases.randn(ROWS, 2 * WIDTH)
    late = LateScales(cases.rand(ROWS), cases.rand(2 * WIDTH)) if is_late else None
    wanted = gate_up.float()
    if late is not None:
        wanted = wanted * late.x.unsqueeze(1) * late.weight
    gate, up = wanted.chunk(2, dim=-1)
    y = silu_mul_rows(gate_up, late=late, quantize=quantize)
    limit = E4M3_ROUNDING if quantize else cases.ROUNDING
    assert cases.distance(value(y), F.silu(gate) * up) < limit


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("width", [2048, 2050, 4100])
def test_gated_activation_of_rows_in_several_tiles(width: int, is_late: bool) -> None:
    gate_up = cases.randn(2, 2 * width)
    late = LateScales(cases.rand(2), cases.rand(2 * width)) if is_late else None
    wanted = gate_up.float()
    if late is not None:
        wanted = wanted * late.x.unsqueeze(1) * late.weight
    gate, up = wanted.chunk(2, dim=-1)
    y = silu_mul_rows(gate_up, late=late, quantize=True)
    assert cases.distance(value(y), F.silu(gate) * up) < E4M3_ROUNDING

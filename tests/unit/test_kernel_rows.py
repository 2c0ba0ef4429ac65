"""Row operations of the Triton kernels, against PyTorch."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
import torch.nn.functional as F
from inferx_kernels.triton.rows import LateScales, Quantized, norm_rows, silu_mul_rows
from torch import Tensor

ROWS, WIDTH = 3, 72
E4M3_ROUNDING = 0.04  # half of the last of 3 bits, relative


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


def test_quantization_alone() -> None:
    x = cases.randn(ROWS, WIDTH)
    assert cases.distance(value(norm_rows(x, None, 0.0, quantize=True)), x) < E4M3_ROUNDING


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

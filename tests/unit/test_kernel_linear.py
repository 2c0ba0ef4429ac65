"""Decode-size products of the Triton kernels, against the same sums in float64."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
import torch.nn.functional as F
from inferx_kernels.triton.linear import gemv, skinny_linear
from inferx_kernels.triton.tuning import LinearConfig
from torch import Tensor

WIDTH, FEATURES = 288, 56  # 4.5 blocks of 64, and 3.5 of 16


def expected(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor,
    norm_weight: Tensor | None = None,
    residual: Tensor | None = None,
    silu_mul: bool = False,
) -> Tensor:
    x = x.double()
    if norm_weight is not None:
        x = F.rms_norm(x, x.shape[-1:], norm_weight.double(), 1e-5)
    y = x @ weight.double().T + bias.double()
    if silu_mul:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual.double()


def quantized(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """e4m3 numbers, one scale a row, and the values they stand for."""
    numbers, scale = cases.randn(rows, columns, dtype=cases.E4M3), cases.rand(rows)
    return numbers, scale, numbers.double() * scale.double().unsqueeze(1)


@pytest.mark.parametrize("num_tokens", [1, 2])
@pytest.mark.parametrize("silu_mul", [False, True])
@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_few_tokens_times_a_matrix_with_norm_before_and_activation_or_add_after(
    num_tokens: int, silu_mul: bool, is_quantized: bool
) -> None:
    x, bias = cases.randn(num_tokens, WIDTH), cases.randn(FEATURES)
    norm_weight = cases.rand(WIDTH, dtype=torch.bfloat16)
    residual = None if silu_mul else cases.randn(num_tokens, FEATURES)
    if is_quantized:
        weight, scale, values = quantized(FEATURES, WIDTH)
    else:
        weight, scale = cases.randn(FEATURES, WIDTH), None
        values = weight
    y = gemv(
        x,
        weight,
        weight_scale=scale,
        bias=bias,
        norm_weight=norm_weight,
        eps=1e-5,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=torch.float32,
        config=LinearConfig(16, 64, 4),
    )
    wanted = expected(
        x, values, bias=bias, norm_weight=norm_weight, residual=residual, silu_mul=silu_mul
    )
    assert cases.distance(y, wanted) < 1e-5


@pytest.mark.parametrize("num_tokens", [1, 17])
@pytest.mark.parametrize("split_k", [1, 3])
@pytest.mark.parametrize("silu_mul", [False, True])
@pytest.mark.parametrize("is_quantized", [False, True])
def test_up_to_64_tokens_times_a_matrix_whole_or_with_its_sums_split(
    num_tokens: int, split_k: int, silu_mul: bool, is_quantized: bool
) -> None:
    bias = cases.randn(FEATURES)
    residual = None if silu_mul else cases.randn(num_tokens, FEATURES)
    if is_quantized:
        x, x_scale, x_values = quantized(num_tokens, WIDTH)
        weight, weight_scale, values = quantized(FEATURES, WIDTH)
    else:
        x, weight = cases.randn(num_tokens, WIDTH), cases.randn(FEATURES, WIDTH)
        x_scale, weight_scale, x_values, values = None, None, x, weight
    y = skinny_linear(
        x,
        weight,
        x_scale=x_scale,
        weight_scale=weight_scale,
        bias=bias,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=torch.float32,
        config=LinearConfig(16, 64, 4, 2, split_k),
    )
    wanted = expected(x_values, values, bias=bias, residual=residual, silu_mul=silu_mul)
    # Hopper's tensor cores add e4m3 products with 14 bits.
    assert cases.distance(y, wanted) < (2e-3 if is_quantized else 1e-5)


def test_the_sizes_that_are_chosen_by_default_work_for_a_small_model() -> None:
    x, weight = cases.randn(1, 576), cases.randn(192, 576)
    bias = torch.zeros(192, device=x.device)
    wanted = expected(x, weight, bias=bias)
    assert cases.distance(gemv(x, weight), wanted) < cases.ROUNDING
    assert cases.distance(skinny_linear(x, weight), wanted) < cases.ROUNDING

"""A step's matrix products: which kernel or library call serves how many tokens.

Three ways, by what measured fastest on an H200 (ci/bench/RESULTS.md): one token is a matrix-vector
product with the norm before it and all that follows fused in; a few tokens are a tensor-core
product that fuses what follows; more are the library's, whose fp8 product leaves its scales to the
kernel that reads the result next.
"""

from __future__ import annotations

from enum import Enum

import torch
import torch.nn.functional as F
from inferx_kernels.linear import PackedLinear
from inferx_kernels.triton.linear import gemv, skinny_linear
from inferx_kernels.triton.rows import LateScales, Quantized, norm_rows
from torch import Tensor

_MOST_SKINNY, _MOST_SKINNY_FP8 = 16, 64  # tokens


class Way(Enum):
    VECTOR = "one token"
    SKINNY = "a few tokens"
    LIBRARY = "more"


def way_of(num_tokens: int, weight_dtype: torch.dtype) -> Way:
    if num_tokens == 1:
        return Way.VECTOR
    most = _MOST_SKINNY_FP8 if weight_dtype == torch.float8_e4m3fn else _MOST_SKINNY
    return Way.SKINNY if num_tokens <= most else Way.LIBRARY


def quantized(x: Tensor, weight: PackedLinear) -> Tensor | Quantized:
    """x: [num_tokens, width] as the product with `weight` reads it."""
    if weight.weight_scale is None:
        return x
    result = norm_rows(x, None, 0.0, quantize=True)
    assert isinstance(result, Quantized)
    return result


def vector(
    x: Tensor,
    weight: PackedLinear,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    silu_mul: bool = False,
) -> Tensor:
    return gemv(
        x,
        weight.weight,
        weight_scale=weight.weight_scale,
        bias=weight.bias,
        norm_weight=norm_weight,
        eps=eps,
        residual=residual,
        silu_mul=silu_mul,
    )


def skinny(
    x: Tensor | Quantized,
    weight: PackedLinear,
    *,
    dtype: torch.dtype,
    residual: Tensor | None = None,
    silu_mul: bool = False,
) -> Tensor:
    numbers, scale = x if isinstance(x, Quantized) else (x, None)
    return skinny_linear(
        numbers,
        weight.weight,
        x_scale=scale,
        weight_scale=weight.weight_scale,
        bias=weight.bias,
        residual=residual,
        silu_mul=silu_mul,
        out_dtype=dtype,
    )


def library(
    x: Tensor | Quantized, weight: PackedLinear, *, dtype: torch.dtype
) -> tuple[Tensor, LateScales | None]:
    """The product, and the scales it has yet to be multiplied with."""
    if not isinstance(x, Quantized):
        return F.linear(x, weight.weight, weight.bias), None
    assert weight.weight_scale is not None
    columns = weight.weight.T
    if weight.bias is not None:  # added after the scales, so these cannot come late
        rows = x.scale.unsqueeze(1), weight.weight_scale.unsqueeze(0)
        y = torch._scaled_mm(
            x.x, columns, *rows, bias=weight.bias, out_dtype=dtype, use_fast_accum=True
        )
        return y, None
    one = _one(x.x.device)
    y = torch._scaled_mm(x.x, columns, one, one, out_dtype=dtype, use_fast_accum=True)
    return y, LateScales(x.scale, weight.weight_scale)


_ones: dict[torch.device, Tensor] = {}


def _one(device: torch.device) -> Tensor:
    if device not in _ones:
        _ones[device] = torch.ones((), device=device)
    return _ones[device]

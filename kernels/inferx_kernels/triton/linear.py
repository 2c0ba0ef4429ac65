"""Linear layers of decode steps, with the norm before and the activation or add after fused in."""

from __future__ import annotations

import torch
from torch import Tensor

from inferx_kernels.triton.device import use_pdl
from inferx_kernels.triton.gemv import gemv_kernel
from inferx_kernels.triton.sizes import cdiv, next_power_of_2
from inferx_kernels.triton.skinny import skinny_kernel
from inferx_kernels.triton.tuning import LinearConfig, gemv_config, skinny_config
from inferx_kernels.triton.workspace import workspace


def gemv(
    x: Tensor,
    weight: Tensor,
    *,
    weight_scale: Tensor | None = None,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
    config: LinearConfig | None = None,
) -> Tensor:
    """rms_norm(x) @ weight^T, then bias, SiLU and multiply, and residual, as given, for few tokens.

    x: [M, K] bf16 or fp16, contiguous; weight: [N, K], of x's type, or e4m3 with weight_scale [N]
    fp32. norm_weight: [K]. residual: [M, N]. silu_mul: the first half of weight's rows is gate, the
    second up, and silu(gate) * up, [M, N / 2], the result. Returns [M, N] in out_dtype or x's.
    """
    num_tokens, width = x.shape
    features = weight.shape[0]
    config = config or gemv_config(features, width, weight.element_size())
    y = _result(x, features, silu_mul, out_dtype or x.dtype)
    pdl = use_pdl(x)
    gemv_kernel[(cdiv(features, config.block_n),)](
        x,
        norm_weight,
        weight,
        weight_scale,
        bias,
        residual,
        y,
        features,
        eps,
        M=num_tokens,
        K=width,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        VEC=16 // weight.element_size(),
        NORM=norm_weight is not None,
        SCALED=weight_scale is not None,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        SILU=silu_mul,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )
    return y


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    *,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype = torch.bfloat16,
    config: LinearConfig | None = None,
) -> Tensor:
    """x @ weight^T, then bias, SiLU and multiply, and residual, as given, for up to 64 tokens.

    x: [M, K], contiguous, and weight: [N, K], of one type: bf16 or fp16, or e4m3 with x_scale [M]
    and weight_scale [N] fp32. The rest is as for `gemv`. Returns [M, N] or [M, N / 2] in out_dtype.
    """
    num_tokens, width = x.shape
    features = weight.shape[0]
    config = config or skinny_config(num_tokens, features, width, weight.element_size())
    y = _result(x, features, silu_mul, out_dtype)
    block_m = max(16, next_power_of_2(num_tokens))
    tiles = cdiv(features, config.block_n)
    parts = tiles * config.split_k * config.block_n * block_m
    scratch = workspace(x.device, floats=parts if config.split_k > 1 else 0, counters=tiles)
    pdl = use_pdl(x)
    skinny_kernel[(tiles, config.split_k)](
        x,
        x_scale,
        weight,
        weight_scale,
        bias,
        residual,
        y,
        scratch.parts,
        scratch.counters,
        num_tokens,
        features,
        K=width,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLIT_K=config.split_k,
        SCALED=weight_scale is not None,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        SILU=silu_mul,
        STAGES=config.num_stages,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )
    return y


def _result(x: Tensor, features: int, silu_mul: bool, dtype: torch.dtype) -> Tensor:
    width = features // 2 if silu_mul else features
    return torch.empty(x.shape[0], width, dtype=dtype, device=x.device)

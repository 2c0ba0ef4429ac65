"""Linear layers of decode steps, with the norm before and the activation or add after fused in."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from inferx_kernels.triton.device import use_pdl
from inferx_kernels.triton.gemv import gemv_kernel
from inferx_kernels.triton.skinny import skinny_kernel
from inferx_kernels.triton.workspace import workspace


class LinearConfig(NamedTuple):
    """How a decode linear is launched. block_* in elements, prefetch in bytes a row."""

    kind: str  # gemv | skinny
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    split_k: int = 1
    prefetch: int = 0
    pdl: bool = True
    maxnreg: int | None = None


def decode_linear(
    x: Tensor,
    weight: Tensor,
    *,
    config: LinearConfig,
    weight_scale: Tensor | None = None,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    silu_mul: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """rms_norm(x) @ weight^T, then bias, SiLU and multiply, and residual, as given.

    x: [M, K] bf16 or fp16, contiguous. weight: [N, K], of x's type, or e4m3 with weight_scale [N]
    fp32. norm_weight: [K]. residual: [M, N]. silu_mul: weight's rows are gate, up, gate, up, ...;
    the result is silu(gate) * up, [M, N / 2]. Returns [M, N] in out_dtype, or x's type.
    """
    tokens, width = x.shape
    features = weight.shape[0]
    out_features = features // 2 if silu_mul else features
    y = torch.empty(tokens, out_features, dtype=out_dtype or x.dtype, device=x.device)
    pdl = config.pdl and use_pdl(x)
    options: dict = {"num_warps": config.num_warps, "launch_pdl": pdl}
    if config.maxnreg is not None:
        options["maxnreg"] = config.maxnreg
    behind = width - config.block_k if config.kind == "gemv" else width // config.split_k
    prefetch = config.prefetch if config.prefetch <= behind * weight.element_size() else 0
    flags = {
        "NORM": norm_weight is not None,
        "SCALED": weight_scale is not None,
        "BIAS": bias is not None,
        "RESIDUAL": residual is not None,
        "SILU": silu_mul,
        "PREFETCH": prefetch,
        "THREADS": config.num_warps * 32,
        "PDL": pdl,
    }
    tiles = triton.cdiv(features, config.block_n)
    operands = (x, norm_weight, weight, weight_scale, bias, residual, y)
    if config.kind == "gemv":
        gemv_kernel[(tiles,)](
            *operands,
            features,
            eps,
            M=tokens,
            K=width,
            BLOCK_N=config.block_n,
            BLOCK_K=config.block_k,
            VEC=16 // weight.element_size(),
            **flags,
            **options,
        )
        return y
    block_m = max(8, triton.next_power_of_2(tokens))
    part = config.block_n * block_m
    squares_at = tiles * config.split_k * part
    scratch = workspace(
        x.device,
        floats=squares_at + tiles * config.split_k * block_m if config.split_k > 1 else 0,
        counters=tiles,
    )
    skinny_kernel[(tiles, config.split_k)](
        *operands,
        scratch.parts,
        scratch.parts[squares_at:] if config.split_k > 1 else scratch.parts,
        scratch.counters,
        tokens,
        features,
        eps,
        K=width,
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLIT_K=config.split_k,
        STAGES=config.num_stages,
        **flags,
        **options,
    )
    return y

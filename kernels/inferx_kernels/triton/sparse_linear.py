"""Sparse linear layers of decode steps of a few tokens, with what is before and after fused in."""

from __future__ import annotations

import torch
from torch import Tensor

from inferx_kernels.sparse import Counters, SparseLinear, Threshold
from inferx_kernels.triton.device import use_pdl
from inferx_kernels.triton.sizes import cdiv, next_power_of_2
from inferx_kernels.triton.sparse_gemv import sparse_gemv_kernel
from inferx_kernels.triton.sparse_tuning import SparseConfig, sparse_config
from inferx_kernels.triton.workspace import workspace

MOST_TOKENS = 4
_WARP = 32  # threads
_LOAD = 16  # bytes


def sparse_linear(
    x: Tensor,
    packed: SparseLinear,
    threshold: Threshold,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    counters: Counters | None = None,
    config: SparseConfig | None = None,
) -> Tensor:
    """`inferx_kernels.sparse.sparse_linear` for up to MOST_TOKENS tokens.

    x: [num_tokens, in_features], contiguous, of any floating type. Which channels other tokens keep
    changes the order of a token's additions, and nothing else.
    """
    num_tokens, width = x.shape
    features, itemsize = packed.weight.shape[1], packed.weight.element_size()
    if num_tokens > MOST_TOKENS:
        raise ValueError(f"a sparse product has {num_tokens} tokens, and takes {MOST_TOKENS}")
    config = config or sparse_config(num_tokens, features, width, itemsize)
    tiles, parts = cdiv(features, config.block_n), cdiv(width, config.k_part)
    slots = config.num_warps * _WARP * _LOAD // (config.block_n * itemsize)
    pad = next_power_of_2(slots * config.rows)
    length = config.k_part + pad
    # The lists, as words of 4 bytes; the other tokens' activations; the parts.
    sizes = (2 * length, (num_tokens - 1) * length, num_tokens * config.block_n)
    sizes = tuple(tiles * parts * size for size in sizes)
    scratch = workspace(x.device, floats=sum(sizes), counters=tiles)
    lists, values, sums = scratch.parts[: sum(sizes)].split(sizes)
    y = torch.empty(
        num_tokens,
        features // 2 if packed.is_gated else features,
        dtype=x.dtype,
        device=x.device,
    )
    pdl = use_pdl(x)
    sparse_gemv_kernel[(tiles + (counters is not None), parts)](
        x,
        norm_weight,
        threshold.value,
        threshold.column_norms,
        packed.weight.view(torch.int32),
        packed.weight_scale,
        packed.bias,
        residual,
        y,
        lists.view(torch.int64),
        values,
        sums,
        scratch.counters,
        counters.ring if counters else None,
        counters.step if counters else None,
        counters.ring.stride(0) if counters else 0,
        features,
        eps,
        M=num_tokens,
        K=width,
        K_PART=config.k_part,
        PACK=4 // itemsize,
        BLOCK_N=config.block_n,
        SLOTS=slots,
        ROWS=config.rows,
        SPLIT_K=parts,
        BLOCK_PART=next_power_of_2(config.k_part),
        BLOCK_K=next_power_of_2(width),
        PAD=pad,
        LENGTH=length,
        NORM=norm_weight is not None,
        AWARE=threshold.column_norms is not None,
        SCALED=packed.weight_scale is not None,
        BIAS=packed.bias is not None,
        RESIDUAL=residual is not None,
        GATED=packed.is_gated,
        COUNT=counters is not None,
        EVEN=features % config.block_n == 0,
        PDL=pdl,
        num_warps=config.num_warps,
        maxnreg=config.maxnreg,
        launch_pdl=pdl,
    )
    return y

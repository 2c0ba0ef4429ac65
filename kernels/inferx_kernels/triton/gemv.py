"""Matrix-vector products for decode steps of few tokens.

A program computes BLOCK_N output features for all M tokens with plain FMAs: at M <= 4 that is far
below the issue rate that the weights' bandwidth leaves, and every byte of a weight goes straight
from memory to a register.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import launch_next, wait_previous


@triton.jit
def dot_rows(w, x, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, VEC: tl.constexpr):
    """[BLOCK_N, BLOCK_K / VEC] partial sums, each within one thread."""
    products = w.to(tl.float32) * x[None, :]
    return tl.sum(tl.reshape(products, [BLOCK_N, BLOCK_K // VEC, VEC]), 2)


@triton.jit
def gemv_kernel(
    x_ptr,  # [M, K] bf16 or fp16
    norm_ptr,  # [K]: RMSNorm's weight, where NORM
    w_ptr,  # [N, K], of x's type, or e4m3 where SCALED
    w_scale_ptr,  # [N] fp32, where SCALED
    bias_ptr,  # [N], where BIAS
    residual_ptr,  # [M, N], where RESIDUAL
    y_ptr,  # [M, N], or [M, N / 2] where SILU
    N,
    eps,
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    VEC: tl.constexpr,  # elements of a 16-byte load
    NORM: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,  # the first half of the rows is gate, the second up
    PDL: tl.constexpr,
):
    tile_rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_ok = tile_rows < N
    # gate, up, gate, up, ...: a pair's two rows are neighbours in the tile.
    rows = tile_rows // 2 + tile_rows % 2 * (N // 2) if SILU else tile_rows
    cols = tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + rows[:, None].to(tl.int64) * K + cols[None, :]
    # A weight is read once a step: it leaves the cache first, for what is read again.
    w = tl.load(
        w_ptrs,
        mask=row_ok[:, None] & (cols < K)[None, :],
        other=0.0,
        eviction_policy="evict_first",
    )
    launch_next(PDL)
    if SCALED:
        scale = tl.load(w_scale_ptr + rows, mask=row_ok, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + rows, mask=row_ok, other=0.0).to(tl.float32)
    if NORM:
        gain = tl.load(norm_ptr + cols, mask=cols < K, other=0.0)
    wait_previous(PDL)
    residual = ()
    for m in tl.static_range(M if RESIDUAL else 0):
        ptrs = residual_ptr + m * N + tile_rows
        residual = residual + (tl.load(ptrs, mask=row_ok, other=0.0),)

    acc = (tl.zeros([BLOCK_N, BLOCK_K // VEC], tl.float32),) * M
    squares = (tl.zeros([BLOCK_K // VEC], tl.float32),) * M
    for k in tl.static_range(0, K, BLOCK_K):
        col_ok = k + cols < K
        if k + BLOCK_K < K:
            w_next = tl.load(
                w_ptrs + k + BLOCK_K,
                mask=row_ok[:, None] & (k + BLOCK_K + cols < K)[None, :],
                other=0.0,
                eviction_policy="evict_first",
            )
        sums = ()
        sums_of_squares = ()
        for m in tl.static_range(M):
            x = tl.load(x_ptr + m * K + k + cols, mask=col_ok, other=0.0).to(tl.float32)
            if NORM:
                square = tl.sum(tl.reshape(x * x, [BLOCK_K // VEC, VEC]), 1)
                sums_of_squares = sums_of_squares + (squares[m] + square,)
                x *= gain.to(tl.float32)
            sums = sums + (acc[m] + dot_rows(w, x, BLOCK_N, BLOCK_K, VEC),)
        acc = sums
        if NORM:
            squares = sums_of_squares
        if k + BLOCK_K < K:
            w = w_next
            if NORM:
                gain = tl.load(
                    norm_ptr + k + BLOCK_K + cols, mask=k + BLOCK_K + cols < K, other=0.0
                )

    for m in tl.static_range(M):
        y = tl.sum(acc[m], 1)
        if NORM:
            y *= tl.rsqrt(tl.sum(squares[m], 0) / K + eps)
        if SCALED:
            y *= scale
        if BIAS:
            y += bias
        if SILU:
            gate, up = tl.split(tl.reshape(y, [BLOCK_N // 2, 2]))
            half = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            y = gate * tl.sigmoid(gate) * up
            out = y_ptr + m * (N // 2) + half
            tl.store(out, y.to(y_ptr.dtype.element_ty), mask=half < N // 2)
        else:
            if RESIDUAL:
                y += residual[m].to(tl.float32)
            tl.store(y_ptr + m * N + tile_rows, y.to(y_ptr.dtype.element_ty), mask=row_ok)

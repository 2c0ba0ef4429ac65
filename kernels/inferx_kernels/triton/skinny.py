"""Matrix products for decode steps of up to 64 tokens: weights are the tall operand.

y^T [N, M] = w [N, K] x^T [K, M] on tensor cores, so that the small M is the instruction's narrow
side. Weights stream through shared memory several stages deep. Where N alone gives too few
programs, K is split, and the last program to finish a tile adds the parts in a fixed order: the
result does not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import launch_next, matmul, wait_previous


@triton.jit(do_not_specialize=["M"])
def skinny_kernel(
    x_ptr,  # [M, K] bf16, fp16 or e4m3
    x_scale_ptr,  # [M] fp32, where SCALED
    w_ptr,  # [N, K], of x's type
    w_scale_ptr,  # [N] fp32, where SCALED
    bias_ptr,  # [N], where BIAS
    residual_ptr,  # [M, N], where RESIDUAL
    y_ptr,  # [M, N], or [M, N / 2] where SILU
    part_ptr,  # [tiles, SPLIT_K, BLOCK_N, BLOCK_M] fp32, where SPLIT_K > 1
    arrivals_ptr,  # [tiles] int32 zeros, and zeros again afterwards
    M,
    N,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,  # the first half of the rows is gate, the second up
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    tile = tl.program_id(0)
    part = tl.program_id(1)
    K_PART: tl.constexpr = (K + SPLIT_K * BLOCK_K - 1) // (SPLIT_K * BLOCK_K) * BLOCK_K
    first_k = tl.multiple_of(part * K_PART, BLOCK_K)
    end_k = tl.minimum(first_k + K_PART, K)
    tile_rows = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    # gate, up, gate, up, ...: a pair's two rows are neighbours in the tile.
    rows = tile_rows // 2 + tile_rows % 2 * (N // 2) if SILU else tile_rows
    tokens = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_K)
    row_ok = tile_rows < N
    token_ok = tokens < M
    launch_next(PDL)
    if SCALED:
        w_scale = tl.load(w_scale_ptr + rows, mask=row_ok, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + rows, mask=row_ok, other=0.0).to(tl.float32)
    wait_previous(PDL)

    w_ptrs = w_ptr + rows[:, None].to(tl.int64) * K + cols[None, :]
    x_ptrs = x_ptr + tokens[None, :] * K + cols[:, None]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in tl.range(first_k, end_k, BLOCK_K, num_stages=STAGES):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs + k, mask=row_ok[:, None], other=0.0)
            x = tl.load(x_ptrs + k, mask=token_ok[None, :], other=0.0)
        else:
            w = tl.load(w_ptrs + k, mask=row_ok[:, None] & (k + cols < K)[None, :], other=0.0)
            x = tl.load(x_ptrs + k, mask=token_ok[None, :] & (k + cols < K)[:, None], other=0.0)
        acc = matmul(w, x, acc)

    # Asked for here, these arrive while the parts gather.
    if SCALED:
        x_scale = tl.load(x_scale_ptr + tokens, mask=token_ok, other=0.0)
    if RESIDUAL:
        residual = tl.load(
            residual_ptr + tokens[None, :] * N + tile_rows[:, None],
            mask=token_ok[None, :] & row_ok[:, None],
            other=0.0,
        )
    if SPLIT_K > 1:
        inner = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tokens[None, :]
        mine = (tile * SPLIT_K + part).to(tl.int64)
        tl.store(part_ptr + mine * BLOCK_N * BLOCK_M + inner, acc)
        tl.debug_barrier()  # the whole program's parts are written before it counts as arrived
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
        if arrived != SPLIT_K - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        first = (tile * SPLIT_K).to(tl.int64)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for other in tl.static_range(SPLIT_K):
            acc += tl.load(part_ptr + (first + other) * BLOCK_N * BLOCK_M + inner, volatile=True)

    if SCALED:
        acc *= x_scale[None, :]
        acc *= w_scale[:, None]
    if BIAS:
        acc += bias[:, None]
    if SILU:
        pairs = tl.permute(tl.reshape(acc, [BLOCK_N // 2, 2, BLOCK_M]), 0, 2, 1)
        gate, up = tl.split(pairs)
        y = gate * tl.sigmoid(gate) * up
        half = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        out = tokens[None, :] * (N // 2) + half[:, None]
        ok = token_ok[None, :] & (half < N // 2)[:, None]
    else:
        y = acc
        out = tokens[None, :] * N + tile_rows[:, None]
        ok = token_ok[None, :] & row_ok[:, None]
        if RESIDUAL:
            y += residual.to(tl.float32)
    tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=ok)

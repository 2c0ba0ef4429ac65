"""Matrix-vector products with e4m3 weights, for decode steps of few tokens.

Widening every weight to fp32 would keep the multiprocessors busier than the memory. Here weights
are widened to fp16, in pairs, which holds them exactly; products are added in fp16 four at a
time, and those sums in fp32. A group of 16 inputs is scaled by a power of two so that its largest
is about 1: no sum overflows, and an fp16 sum of four is off by less than bf16 inputs are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import INTERPRETED, launch_next, prefetch_l2, wait_previous

GROUP = tl.constexpr(4)  # words of four inputs that share a scale: what a thread loads at once


@triton.jit
def unpack_bf16(words):
    """int64 words of four bf16 numbers to four fp32 tensors."""
    low = words.to(tl.int32)
    high = (words >> 32).to(tl.int32)
    mask = -65536  # the upper half of 32 bits
    return (
        (low << 16).to(tl.float32, bitcast=True),
        (low & mask).to(tl.float32, bitcast=True),
        (high << 16).to(tl.float32, bitcast=True),
        (high & mask).to(tl.float32, bitcast=True),
    )


@triton.jit
def scale_group(a, b, c, d, WORDS: tl.constexpr):
    """A power of two a word, the same within a group, that the group's inputs stay below; >= 2^-60."""
    largest = tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d)))
    largest = tl.max(tl.reshape(largest, [WORDS // GROUP, GROUP]), 1)
    largest = tl.clamp(largest, 2.0**-60, 2.0**60)
    bits = (largest.to(tl.int32, bitcast=True) & 0x7F800000) + 0x800000
    exponent = tl.broadcast_to(bits[:, None], [WORDS // GROUP, GROUP])
    return tl.reshape(exponent, [WORDS]).to(tl.float32, bitcast=True)


@triton.jit
def pack_half(low, high):
    """Two fp32 tensors to int32 words of two fp16 numbers."""
    return tl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [low, high], tl.int32, is_pure=True, pack=1
    )


@triton.jit
def dot_words(w, x01, x23):
    """Sums of products whose total over every four neighbouring words is the words' dot product.

    w: int32 words of four e4m3 weights; x01, x23: int32 words of two fp16 inputs each.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 p, q;
        .reg .b32 a, b, s, t;
        mov.b32 {p, q}, $4;
        cvt.rn.f16x2.e4m3x2 a, p;
        cvt.rn.f16x2.e4m3x2 b, q;
        mul.rn.f16x2 s, a, $8;
        fma.rn.f16x2 s, b, $12, s;
        mov.b32 {p, q}, $5;
        cvt.rn.f16x2.e4m3x2 a, p;
        cvt.rn.f16x2.e4m3x2 b, q;
        fma.rn.f16x2 s, a, $9, s;
        fma.rn.f16x2 s, b, $13, s;
        mov.b32 {p, q}, $6;
        cvt.rn.f16x2.e4m3x2 a, p;
        cvt.rn.f16x2.e4m3x2 b, q;
        mul.rn.f16x2 t, a, $10;
        fma.rn.f16x2 t, b, $14, t;
        mov.b32 {p, q}, $7;
        cvt.rn.f16x2.e4m3x2 a, p;
        cvt.rn.f16x2.e4m3x2 b, q;
        fma.rn.f16x2 t, a, $11, t;
        fma.rn.f16x2 t, b, $15, t;
        mov.b32 {p, q}, s;
        cvt.f32.f16 $0, p;
        cvt.f32.f16 $1, q;
        mov.b32 {p, q}, t;
        cvt.f32.f16 $2, p;
        cvt.f32.f16 $3, q;
        }""",
        "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r",
        [w, x01, x23],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )


@triton.jit
def dot_words_interpreted(w, a, b, c, d):
    w0 = (w & 0xFF).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    w1 = ((w >> 8) & 0xFF).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    w2 = ((w >> 16) & 0xFF).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    w3 = ((w >> 24) & 0xFF).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return w0 * a[None, :] + w1 * b[None, :] + w2 * c[None, :] + w3 * d[None, :]


@triton.jit
def gemv_fp8_kernel(
    x_ptr,  # [M, K / 4] int64: words of four bf16 inputs
    norm_ptr,  # [K / 4] int64, where NORM
    w_ptr,  # [N, K / 4] int32: words of four e4m3 weights
    w_scale_ptr,  # [N] fp32
    bias_ptr,  # [N], where BIAS
    residual_ptr,  # [M, N], where RESIDUAL
    y_ptr,  # [M, N], or [M, N / 2] where SILU
    N,
    eps,
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,  # the first half of the rows is gate, the second up
    PREFETCH: tl.constexpr,  # bytes a row to bring into L2 before the previous kernel is done
    THREADS: tl.constexpr,
    PDL: tl.constexpr,
):
    WORDS: tl.constexpr = BLOCK_K // 4
    ROW: tl.constexpr = K // 4
    tile_rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_ok = tile_rows < N
    # gate, up, gate, up, ...: a pair's two rows are neighbours in the tile.
    rows = tile_rows // 2 + tile_rows % 2 * (N // 2) if SILU else tile_rows
    cols = tl.arange(0, WORDS)
    w_ptrs = w_ptr + rows[:, None].to(tl.int64) * ROW + cols[None, :]
    w = tl.load(w_ptrs, mask=row_ok[:, None] & (cols < ROW)[None, :], other=0)
    launch_next(PDL)
    if PREFETCH > 0:
        SEGMENTS: tl.constexpr = THREADS // BLOCK_N
        lane = tl.arange(0, THREADS)
        lane_row = tl.minimum(tl.program_id(0) * BLOCK_N + lane // SEGMENTS, N - 1)
        if SILU:
            lane_row = lane_row // 2 + lane_row % 2 * (N // 2)
        start = w_ptr + lane_row.to(tl.int64) * ROW + WORDS
        prefetch_l2(
            start.to(tl.int64) + (lane % SEGMENTS) * (PREFETCH // SEGMENTS), PREFETCH // SEGMENTS
        )
    scale = tl.load(w_scale_ptr + rows, mask=row_ok, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + rows, mask=row_ok, other=0.0).to(tl.float32)
    if NORM:
        gain = tl.load(norm_ptr + cols, mask=cols < ROW, other=0)
    wait_previous(PDL)

    acc = (tl.zeros([BLOCK_N, WORDS], tl.float32),) * M
    squares = (tl.zeros([WORDS], tl.float32),) * M
    for k in tl.static_range(0, ROW, WORDS):
        if k + WORDS < ROW:
            next_ok = k + WORDS + cols < ROW
            w_next = tl.load(w_ptrs + k + WORDS, mask=row_ok[:, None] & next_ok[None, :], other=0)
        sums = ()
        sums_of_squares = ()
        for m in tl.static_range(M):
            words = tl.load(x_ptr + m * ROW + k + cols, mask=k + cols < ROW, other=0)
            a, b, c, d = unpack_bf16(words)
            if NORM:
                sums_of_squares = sums_of_squares + (squares[m] + a * a + b * b + c * c + d * d,)
                ga, gb, gc, gd = unpack_bf16(gain)
                a *= ga
                b *= gb
                c *= gc
                d *= gd
            group_scale = scale_group(a, b, c, d, WORDS)
            inverse = 1.0 / group_scale
            a *= inverse
            b *= inverse
            c *= inverse
            d *= inverse
            if INTERPRETED:
                products = dot_words_interpreted(w, a, b, c, d)
            else:
                x01 = tl.broadcast_to(pack_half(a, b)[None, :], [BLOCK_N, WORDS])
                x23 = tl.broadcast_to(pack_half(c, d)[None, :], [BLOCK_N, WORDS])
                products = dot_words(w, x01, x23)
            sums = sums + (acc[m] + products * group_scale[None, :],)
        acc = sums
        if NORM:
            squares = sums_of_squares
        if k + WORDS < ROW:
            w = w_next
            if NORM:
                gain = tl.load(norm_ptr + k + WORDS + cols, mask=next_ok, other=0)

    for m in tl.static_range(M):
        y = tl.sum(acc[m], 1) * scale
        if NORM:
            y *= tl.rsqrt(tl.sum(squares[m], 0) / K + eps)
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
                residual = tl.load(residual_ptr + m * N + tile_rows, mask=row_ok, other=0.0)
                y += residual.to(tl.float32)
            tl.store(y_ptr + m * N + tile_rows, y.to(y_ptr.dtype.element_ty), mask=row_ok)

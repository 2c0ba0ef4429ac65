"""What runs between matrix products on whole rows: residual add, RMS norm, gated activation.

Each can also quantize its result to e4m3 with one scale a token, and apply late the scales of an
fp8 product: `torch._scaled_mm` is fastest without them, and here they cost a multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import launch_next, to_e4m3, wait_previous


@triton.jit
def norm_kernel(
    x_ptr,  # [num_rows, width]
    x_scale_ptr,  # [num_rows] fp32, where LATE
    w_scale_ptr,  # [width] fp32, where LATE
    residual_ptr,  # [num_rows, width], where ADD; updated in place
    weight_ptr,  # [width]
    out_ptr,  # [num_rows, width], e4m3 where QUANTIZE
    out_scale_ptr,  # [num_rows] fp32, where QUANTIZE
    width,
    x_stride,
    eps,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    LATE: tl.constexpr,
    QUANTIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    ok = columns < width
    launch_next(PDL)
    if NORM:
        weight = tl.load(weight_ptr + columns, mask=ok, other=0.0).to(tl.float32)
    if LATE:
        w_scale = tl.load(w_scale_ptr + columns, mask=ok, other=0.0)
    wait_previous(PDL)
    x = tl.load(x_ptr + row * x_stride + columns, mask=ok, other=0.0).to(tl.float32)
    if LATE:
        x *= w_scale * tl.load(x_scale_ptr + row)
    if ADD:
        residual_ptrs = residual_ptr + row * width + columns
        x += tl.load(residual_ptrs, mask=ok, other=0.0).to(tl.float32)
        x = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptrs, x, mask=ok)
        x = x.to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * weight
    if QUANTIZE:
        scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-10) / 448.0
        tl.store(out_scale_ptr + row, scale)
        x = to_e4m3(x / scale)
    tl.store(out_ptr + row * width + columns, x.to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,  # [num_rows, 2 * width], gate first
    x_scale_ptr,  # [num_rows] fp32, where LATE
    w_scale_ptr,  # [2 * width] fp32, where LATE
    out_ptr,  # [num_rows, width]
    width,
    BLOCK: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    launch_next(PDL)
    wait_previous(PDL)
    y = silu_mul_tile(gate_up_ptr, x_scale_ptr, w_scale_ptr, row, columns, width, LATE)
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=columns < width)


@triton.jit
def silu_mul_quantize_kernel(
    gate_up_ptr,  # [num_rows, 2 * width], gate first
    x_scale_ptr,  # [num_rows] fp32, where LATE
    w_scale_ptr,  # [2 * width] fp32, where LATE
    out_ptr,  # [num_rows, width] e4m3
    out_scale_ptr,  # [num_rows] fp32
    width,
    BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    LATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row a program, in tiles that stay in registers until the row's scale is known."""
    row = tl.program_id(0).to(tl.int64)
    launch_next(PDL)
    wait_previous(PDL)
    largest = tl.zeros([BLOCK], tl.float32)
    tiles = ()
    for i in tl.static_range(NUM_BLOCKS):
        columns = i * BLOCK + tl.arange(0, BLOCK)
        y = silu_mul_tile(gate_up_ptr, x_scale_ptr, w_scale_ptr, row, columns, width, LATE)
        largest = tl.maximum(largest, tl.abs(y))
        tiles = tiles + (y,)
    scale = tl.maximum(tl.max(largest, 0), 1e-10) / 448.0
    tl.store(out_scale_ptr + row, scale)
    inverse = 1.0 / scale
    for i in tl.static_range(NUM_BLOCKS):
        columns = i * BLOCK + tl.arange(0, BLOCK)
        y = to_e4m3(tiles[i] * inverse)
        tl.store(out_ptr + row * width + columns, y, mask=columns < width)


@triton.jit
def silu_mul_tile(gate_up_ptr, x_scale_ptr, w_scale_ptr, row, columns, width, LATE: tl.constexpr):
    """silu(gate) * up of some columns of a row in fp32, 0 beyond width."""
    ok = columns < width
    gate_ptrs = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(gate_ptrs, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + width, mask=ok, other=0.0).to(tl.float32)
    if LATE:
        x_scale = tl.load(x_scale_ptr + row)
        gate *= x_scale * tl.load(w_scale_ptr + columns, mask=ok, other=0.0)
        up *= x_scale * tl.load(w_scale_ptr + width + columns, mask=ok, other=0.0)
    return gate * tl.sigmoid(gate) * up

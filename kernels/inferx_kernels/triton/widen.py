"""e4m3 pages of some rows, widened once for an attention that reads every key many times."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferx_kernels.triton.sizes import cdiv, next_power_of_2

BLOCK_SIZE = 128  # tokens a page of the copy


class WidenedPages(NamedTuple):
    """A copy that attention takes in place of the pages."""

    k: Tensor  # [num_pages, BLOCK_SIZE, num_kv_heads, head_dim]
    v: Tensor
    block_table: Tensor  # [num_rows, max_pages] int32


@triton.jit(
    do_not_specialize=["block_table_stride"],
    do_not_specialize_on_alignment=["block_table_ptr", "seq_lens_ptr", "first_pages_ptr"],
)
def widen_kernel(
    k_pages_ptr,
    v_pages_ptr,  # [num_blocks, block_size, WIDTH] each
    block_table_ptr,  # [num_rows, max_blocks] int32
    seq_lens_ptr,  # [num_rows] int32
    first_pages_ptr,  # [num_rows] int32: each row's first page of the copy
    k_ptr,
    v_ptr,  # [num_pages, COPY_SIZE, WIDTH] each
    block_table_stride,
    block_size: tl.constexpr,
    COPY_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    row = tl.program_id(0)
    first = tl.program_id(1) * BLOCK_T
    length = tl.load(seq_lens_ptr + row)
    if first >= length:
        return
    tokens = first + tl.arange(0, BLOCK_T)
    columns = tl.program_id(2) * BLOCK_W + tl.arange(0, BLOCK_W)
    ok = (tokens < length)[:, None] & (columns < WIDTH)[None, :]
    pages_ptr = block_table_ptr + row.to(tl.int64) * block_table_stride
    page = tl.load(pages_ptr + tokens // block_size, mask=tokens < length, other=0).to(tl.int64)
    source = (page * block_size + tokens % block_size)[:, None] * WIDTH + columns[None, :]
    first_slot = tl.load(first_pages_ptr + row).to(tl.int64) * COPY_SIZE
    target = (first_slot + tokens)[:, None] * WIDTH + columns[None, :]
    dtype = k_ptr.dtype.element_ty
    k = tl.load(k_pages_ptr + source, mask=ok, other=0.0).to(tl.float32)
    tl.store(k_ptr + target, k.to(dtype), mask=ok)
    v = tl.load(v_pages_ptr + source, mask=ok, other=0.0).to(tl.float32)
    tl.store(v_ptr + target, v.to(dtype), mask=ok)


class WidenPlan(NamedTuple):
    """Where rows go in a step's copies, the same for every layer."""

    first_pages: Tensor  # [num_rows] int32
    block_table: Tensor  # [num_rows, max_pages] int32
    num_pages: int
    max_seq_len: int


def plan_widen(seq_lens: Tensor, *, num_tokens: int, max_seq_len: int) -> WidenPlan:
    """seq_lens: [num_rows] int32, on the device; num_tokens and max_seq_len: their sum and
    largest, or more.
    """
    pages = (seq_lens + BLOCK_SIZE - 1) // BLOCK_SIZE
    first_pages = (pages.cumsum(0) - pages).int()
    places = torch.arange(cdiv(max_seq_len, BLOCK_SIZE), device=seq_lens.device)
    block_table = (first_pages.unsqueeze(1) + places).int()
    num_pages = num_tokens // BLOCK_SIZE + len(seq_lens)
    return WidenPlan(first_pages, block_table, num_pages, max_seq_len)


def widen_pages(
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    plan: WidenPlan,
    dtype: torch.dtype,
) -> WidenedPages:
    """Copies the rows' K and V to pages of their own, in dtype.

    Tokens behind a row's end are left unwritten: attention masks them.
    """
    block_size, num_kv_heads, head_dim = k_pages.shape[1:]
    shape = (plan.num_pages, BLOCK_SIZE, num_kv_heads, head_dim)
    k, v = (torch.empty(shape, dtype=dtype, device=k_pages.device) for _ in range(2))
    width = num_kv_heads * head_dim
    block_w = min(1024, next_power_of_2(width))
    block_t = max(1, 8192 // block_w)
    grid = (
        len(seq_lens),
        cdiv(plan.max_seq_len, block_t),
        cdiv(width, block_w),
    )
    widen_kernel[grid](
        k_pages,
        v_pages,
        block_table,
        seq_lens,
        plan.first_pages,
        k,
        v,
        block_table.stride(0),
        block_size=block_size,
        COPY_SIZE=BLOCK_SIZE,
        WIDTH=width,
        BLOCK_T=block_t,
        BLOCK_W=block_w,
        num_warps=4,
    )
    return WidenedPages(k, v, plan.block_table)

"""Attention of decode rows over paged K and V (split-KV: Flash-Decoding, arXiv 2311.12983).

A row's keys are cut at fixed multiples of CHUNK tokens, whoever shares the batch. A program takes
one chunk of one KV head at a time, with all query heads of the head's group as one tile; the last
program to finish a row's head combines the chunks in order. The work list is made on the device
once a step (`plan_decode`), and the grid is fixed: a CUDA graph replays with other lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import (
    INTERPRETED,
    launch_next,
    load_pages,
    matmul,
    to_e4m3,
    wait_previous,
)
from inferx_kernels.triton.rope import rotated

ITEM_WORDS = tl.constexpr(8)  # int32 words an item takes, of which five are used
COMBINE = tl.constexpr(4)  # chunks combined at a time


@triton.jit(do_not_specialize=["num_rows"])
def plan_decode_kernel(
    seq_lens_ptr,  # [num_rows] int32
    items_ptr,  # [max_items, ITEM_WORDS] int32: row, its length, chunk, row's first item and chunks
    num_items_ptr,  # [1] int32
    num_rows,
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Program i lists row i's chunks; items of a row are neighbours."""
    row = tl.program_id(0)
    before = tl.zeros([BLOCK_ROWS], tl.int32)
    for first in range(0, num_rows, BLOCK_ROWS):
        rows = first + tl.arange(0, BLOCK_ROWS)
        lens = tl.load(seq_lens_ptr + rows, mask=rows < row, other=0)
        skipped = tl.maximum(lens - WINDOW, 0) // CHUNK if WINDOW > 0 else 0
        before += tl.cdiv(lens, CHUNK) - skipped
    first_item = tl.sum(before, 0)
    length = tl.load(seq_lens_ptr + row)
    first_chunk = tl.maximum(length - WINDOW, 0) // CHUNK if WINDOW > 0 else 0
    num_chunks = tl.cdiv(length, CHUNK) - first_chunk
    if row == num_rows - 1:
        tl.store(num_items_ptr, first_item + num_chunks)
    for first in range(0, num_chunks, BLOCK_CHUNKS):
        chunks = first + tl.arange(0, BLOCK_CHUNKS)
        item_ptrs = items_ptr + (first_item + chunks) * ITEM_WORDS
        ok = chunks < num_chunks
        tl.store(item_ptrs, row, mask=ok)
        tl.store(item_ptrs + 1, length, mask=ok)
        tl.store(item_ptrs + 2, first_chunk + chunks, mask=ok)
        tl.store(item_ptrs + 3, first_item, mask=ok)
        tl.store(item_ptrs + 4, num_chunks, mask=ok)


@triton.jit
def split_e4m3(pairs):
    """int16 pairs of e4m3 numbers to two fp16 tensors: the low bytes' and the high bytes'."""
    if INTERPRETED:
        low = pairs.to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        high = (pairs >> 8).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            .reg .b16 a, b;
            prmt.b32 t, $2, 0, 0x3120;
            mov.b32 {a, b}, t;
            cvt.rn.f16x2.e4m3x2 $0, a;
            cvt.rn.f16x2.e4m3x2 $1, b;
            }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return low, high


@triton.jit(do_not_specialize=["block_table_stride"])
def decode_attention_kernel(
    q_ptr,  # [num_rows, num_heads, head_dim]; of qkv where FUSED
    k_pages_ptr,
    v_pages_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim] each
    block_table_ptr,  # [num_rows, max_blocks] int32
    items_ptr,
    num_items_ptr,  # of plan_decode_kernel
    out_ptr,  # [num_rows, num_heads, head_dim]
    part_ptr,  # [max_items, num_heads, head_dim] fp32
    part_top_ptr,  # [max_items, num_heads] fp32: the chunk's largest score, times log2(e)
    part_total_ptr,  # [max_items, num_heads] fp32: its sum of exponentials
    arrivals_ptr,  # [num_rows * num_kv_heads] int32 zeros, and zeros again afterwards
    norm_ptr,  # [num_heads + num_kv_heads, head_dim], where NORM
    cos_ptr,
    sin_ptr,  # [num_rows, ROTARY_DIM] fp32, where FUSED
    q_row_stride,
    block_table_stride,
    scale,
    eps,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    BLOCK_G: tl.constexpr,  # GROUP as the tile has it
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_T: tl.constexpr,  # keys a tile
    CHUNK: tl.constexpr,
    WINDOW: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    FP8_PAGES: tl.constexpr,
    FUSED: tl.constexpr,  # norm and rotate q and k, and write k and v, before attending
    NORM: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    TOKEN_STRIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    PAIR: tl.constexpr = 2 if FP8_PAGES else 1  # features of V that a row of acc stands for
    launch_next(PDL)
    group = tl.arange(0, BLOCK_G)
    features = tl.arange(0, BLOCK_D)
    pairs = tl.arange(0, BLOCK_D // PAIR)
    places = tl.arange(0, BLOCK_T)
    in_group = group < GROUP
    in_head = features < HEAD_DIM
    tile_ok = in_group[:, None] & in_head[None, :]
    num_work = tl.load(num_items_ptr) * NUM_KV_HEADS
    scale *= 1.4426950408889634  # exponentials are of base 2

    for work in range(tl.program_id(0), num_work, tl.num_programs(0)):
        item = work // NUM_KV_HEADS
        kv_head = work % NUM_KV_HEADS
        item_ptr = items_ptr + item * ITEM_WORDS
        row = tl.load(item_ptr)
        length = tl.load(item_ptr + 1)
        chunk = tl.load(item_ptr + 2)
        first_item = tl.load(item_ptr + 3)
        num_chunks = tl.load(item_ptr + 4)
        pages_ptr = block_table_ptr + row.to(tl.int64) * block_table_stride
        heads = kv_head * GROUP + group
        row_ptr = q_ptr + row.to(tl.int64) * q_row_stride
        heads_ptr = row_ptr + heads[:, None] * HEAD_DIM

        begin = chunk * CHUNK
        if WINDOW > 0:
            begin = tl.maximum(begin, length - WINDOW)
        end = tl.minimum((chunk + 1) * CHUNK, length)
        top = tl.full([BLOCK_G], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        acc = tl.zeros([BLOCK_D // PAIR, BLOCK_G], tl.float32)
        acc_odd = acc
        wait_previous(PDL)
        if FUSED:
            cos_row = cos_ptr + row * ROTARY_DIM
            sin_row = sin_ptr + row * ROTARY_DIM
            q = rotated(
                heads_ptr,
                norm_ptr + heads[:, None] * HEAD_DIM if NORM else norm_ptr,
                cos_row,
                sin_row,
                1.0,
                1.0,
                1.0,
                features,
                tile_ok,
                eps,
                HEAD_DIM,
                ROTARY_DIM,
                NORM,
                False,
            )[1]
            q = q.to(q_ptr.dtype.element_ty)
            v_new = tl.zeros([1, BLOCK_D], v_pages_ptr.dtype.element_ty)
            if end == length:
                # The row's newest token: this program writes it to its page, and attends to it
                # from registers.
                k_head = NUM_HEADS + kv_head + tl.arange(0, 1)[:, None]
                k_new = rotated(
                    row_ptr + k_head * HEAD_DIM,
                    norm_ptr + k_head * HEAD_DIM if NORM else norm_ptr,
                    cos_row,
                    sin_row,
                    1.0,
                    1.0,
                    1.0,
                    features,
                    in_head[None, :],
                    eps,
                    HEAD_DIM,
                    ROTARY_DIM,
                    NORM,
                    False,
                )[1]
                v_new_ptr = row_ptr + (k_head + NUM_KV_HEADS) * HEAD_DIM
                v_new = tl.load(v_new_ptr + features[None, :], mask=in_head[None, :], other=0.0)
                k_new = k_new.to(q_ptr.dtype.element_ty)
                if FP8_PAGES:
                    k_new = to_e4m3(k_new.to(tl.float32))
                    v_new = to_e4m3(v_new.to(tl.float32))
                page = tl.load(pages_ptr + (length - 1) // BLOCK_SIZE).to(tl.int64)
                slot = page * BLOCK_SIZE + (length - 1) % BLOCK_SIZE
                place = slot * TOKEN_STRIDE + kv_head * HEAD_DIM + features[None, :]
                tl.store(k_pages_ptr + place, k_new, mask=in_head[None, :])
                tl.store(v_pages_ptr + place, v_new, mask=in_head[None, :])
                top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), 1) * scale
                total += 1.0
                end -= 1
            top_new = top
        else:
            q = tl.load(heads_ptr + features[None, :], mask=tile_ok, other=0.0)

        if FP8_PAGES:  # multiplied in fp16, which holds e4m3 exactly and is one conversion away
            q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
        q = q.T
        first = begin - begin % BLOCK_T
        page = load_pages(pages_ptr, first, end, BLOCK_SIZE, BLOCK_T)
        for start in tl.range(first, end, BLOCK_T, num_stages=STAGES):
            tokens = start + places
            seen = (tokens >= begin) & (tokens < end)
            slots = page.to(tl.int64) * BLOCK_SIZE + tokens % BLOCK_SIZE
            page = load_pages(pages_ptr, start + BLOCK_T, end, BLOCK_SIZE, BLOCK_T)
            head_at = slots * TOKEN_STRIDE + kv_head * HEAD_DIM
            k = tl.load(
                k_pages_ptr + head_at[:, None] + features[None, :],
                mask=seen[:, None] & in_head[None, :],
                other=0.0,
            )
            # Keys are the tall side: [keys, heads] scores, [features, heads] sums.
            scores = matmul(k.to(q.dtype), q, tl.zeros([BLOCK_T, BLOCK_G], tl.float32)) * scale
            scores = tl.where(seen[:, None], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 0))
            weights = tl.exp2(scores - new_top[None, :])
            kept = tl.exp2(top - new_top)
            total = total * kept + tl.sum(weights, 0)
            weights = weights.to(q.dtype)
            v_mask = (pairs < HEAD_DIM // PAIR)[:, None] & seen[None, :]
            if FP8_PAGES:
                # Two features at once: tensor cores want neighbouring keys in one register, and
                # shared memory transposes 16-bit elements on the way, but not bytes.
                v_pairs_ptr = (v_pages_ptr + head_at).to(tl.pointer_type(tl.int16))
                v_pair = tl.load(v_pairs_ptr[None, :] + pairs[:, None], mask=v_mask, other=0)
                even, odd = split_e4m3(v_pair)
                acc = matmul(even, weights, acc * kept[None, :])
                acc_odd = matmul(odd, weights, acc_odd * kept[None, :])
            else:
                v = tl.load(v_pages_ptr + head_at[None, :] + pairs[:, None], v_mask, other=0.0)
                acc = matmul(v, weights, acc * kept[None, :])
            top = new_top

        result = acc.T
        if FP8_PAGES:
            result = tl.interleave(result, acc_odd.T)
        if FUSED:
            result += v_new.to(tl.float32) * tl.exp2(top_new - top)[:, None]

        out_at = (row.to(tl.int64) * NUM_HEADS + heads)[:, None] * HEAD_DIM + features[None, :]
        if num_chunks == 1:
            out = (result / total[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + out_at, out, tile_ok)
        else:
            part_at = item * NUM_HEADS + heads
            tl.store(part_ptr + part_at[:, None] * HEAD_DIM + features[None, :], result, tile_ok)
            tl.store(part_top_ptr + part_at, top, in_group)
            tl.store(part_total_ptr + part_at, total, in_group)
            tl.debug_barrier()  # the whole program's parts are written before it counts as arrived
            counter_ptr = arrivals_ptr + row * NUM_KV_HEADS + kv_head
            if tl.atomic_add(counter_ptr, 1, sem="acq_rel") == num_chunks - 1:
                tl.store(counter_ptr, 0)
                top = tl.full([BLOCK_G], -1e30, tl.float32)
                total = tl.zeros([BLOCK_G], tl.float32)
                result = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
                for first in range(0, num_chunks, COMBINE):
                    # All of a round's loads are under way before the first is used.
                    parts = ()
                    tops = ()
                    totals = ()
                    new_top = top
                    for other in tl.static_range(COMBINE):
                        ok = in_group & (first + other < num_chunks)
                        at = (first_item + first + other) * NUM_HEADS + heads
                        tops = tops + (tl.load(part_top_ptr + at, mask=ok, other=-1e30),)
                        totals = totals + (tl.load(part_total_ptr + at, mask=ok, other=0.0),)
                        at = at[:, None] * HEAD_DIM + features[None, :]
                        ok = ok[:, None] & in_head[None, :]
                        parts = parts + (tl.load(part_ptr + at, mask=ok, other=0.0),)
                    for other in tl.static_range(COMBINE):
                        new_top = tl.maximum(new_top, tops[other])
                    kept = tl.exp2(top - new_top)
                    total *= kept
                    result *= kept[:, None]
                    for other in tl.static_range(COMBINE):
                        added = tl.exp2(tops[other] - new_top)
                        total += totals[other] * added
                        result += parts[other] * added[:, None]
                    top = new_top
                total = tl.where(in_group, total, 1.0)
                out = (result / total[:, None]).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + out_at, out, tile_ok)
    wait_previous(PDL)  # also where there was no work

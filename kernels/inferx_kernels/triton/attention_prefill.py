"""Attention of prompt chunks over paged K and V, causal (FlashAttention-2, arXiv 2307.08691).

A tile's rows are tokens times the query heads of one KV head, so that every group size and every
chunk length fill it alike, and a tile of K serves all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import load_pages, matmul


@triton.jit
def attend(
    q,
    acc,
    top,
    total,
    k_head_ptr,
    v_head_ptr,
    pages_ptr,
    positions,  # of the tile's rows
    first,
    end,
    length,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    WINDOW: tl.constexpr,
    MASKED: tl.constexpr,  # some of the keys are hidden from some of the rows
    STAGES: tl.constexpr,
):
    """Keys [first, end) added to the running softmax; first is a multiple of BLOCK_N."""
    places = tl.arange(0, BLOCK_N)
    features = tl.arange(0, BLOCK_D)
    page = load_pages(pages_ptr, first, length, BLOCK_SIZE, BLOCK_N)
    for start in tl.range(first, end, BLOCK_N, num_stages=STAGES):
        tokens = start + places
        slots = page.to(tl.int64) * BLOCK_SIZE + tokens % BLOCK_SIZE
        page = load_pages(pages_ptr, start + BLOCK_N, length, BLOCK_SIZE, BLOCK_N)
        where = slots[:, None] * TOKEN_STRIDE + features[None, :]
        if MASKED or HEAD_DIM != BLOCK_D:
            ok = (tokens < length)[:, None] & (features < HEAD_DIM)[None, :]
            k = tl.load(k_head_ptr + where, mask=ok, other=0.0)
        else:
            k = tl.load(k_head_ptr + where)
        scores = matmul(q, k.to(q.dtype).T, tl.zeros([q.shape[0], BLOCK_N], tl.float32))
        if MASKED:
            seen = tokens[None, :] <= positions[:, None]
            if WINDOW > 0:
                seen = seen & (tokens[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_top[:, None])
        kept = tl.exp2(top - new_top)
        total = total * kept + tl.sum(weights, 1)
        if MASKED or HEAD_DIM != BLOCK_D:
            v = tl.load(v_head_ptr + where, mask=ok, other=0.0)
        else:
            v = tl.load(v_head_ptr + where)
        acc = matmul(weights.to(q.dtype), v.to(q.dtype), acc * kept[:, None])
        top = new_top
    return acc, top, total


@triton.jit(
    do_not_specialize=["num_rows", "block_table_stride"],
    do_not_specialize_on_alignment=["block_table_ptr", "seq_lens_ptr", "query_start_ptr"],
)
def prefill_attention_kernel(
    q_ptr,  # [num_tokens, num_heads, head_dim]
    k_pages_ptr,
    v_pages_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim] each
    block_table_ptr,  # [num_rows, max_blocks] int32
    seq_lens_ptr,  # [num_rows] int32
    query_start_ptr,  # [num_rows + 1] int32
    out_ptr,  # [num_tokens, num_heads, head_dim]
    num_rows,
    q_token_stride,
    out_token_stride,
    block_table_stride,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    FP8_PAGES: tl.constexpr,
    STAGES: tl.constexpr,
):
    TOKENS: tl.constexpr = BLOCK_M // GROUP  # a tile's
    TOKEN_STRIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    # Late tiles of a prompt see the most keys: they start first.
    kv_head = tl.program_id(0)
    place = tl.num_programs(1) - 1 - tl.program_id(1)
    base = tl.load(query_start_ptr)
    row = -1
    for first_row in range(0, num_rows, BLOCK_ROWS):
        rows = first_row + tl.arange(0, BLOCK_ROWS)
        starts = tl.load(query_start_ptr + rows, mask=rows < num_rows, other=0)
        # Row r's tiles begin at (tokens before it) // TOKENS + r: no two rows' overlap.
        is_before = (rows < num_rows) & ((starts - base) // TOKENS + rows <= place)
        row += tl.sum(is_before.to(tl.int32), 0)
    query_start = tl.load(query_start_ptr + row)
    num_queries = tl.load(query_start_ptr + row + 1) - query_start
    first_query = (place - ((query_start - base) // TOKENS + row)) * TOKENS
    if first_query >= num_queries:
        return
    length = tl.load(seq_lens_ptr + row)

    lanes = tl.arange(0, BLOCK_M)
    features = tl.arange(0, BLOCK_D)
    query = first_query + lanes // GROUP
    ok = ((lanes < TOKENS * GROUP) & (query < num_queries))[:, None]
    ok = ok & (features < HEAD_DIM)[None, :]
    token = (query_start + query).to(tl.int64)
    head = kv_head * GROUP + lanes % GROUP
    q_ptrs = q_ptr + (token * q_token_stride + head * HEAD_DIM)[:, None] + features[None, :]
    q = tl.load(q_ptrs, mask=ok, other=0.0)
    if FP8_PAGES:  # multiplied in fp16, which holds e4m3 exactly and is one conversion away
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
    first_position = length - num_queries + first_query
    positions = length - num_queries + query
    end = tl.minimum(first_position + TOKENS, length)

    pages_ptr = block_table_ptr + row.to(tl.int64) * block_table_stride
    k_head_ptr = k_pages_ptr + kv_head * HEAD_DIM
    v_head_ptr = v_pages_ptr + kv_head * HEAD_DIM
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    scale *= 1.4426950408889634  # exponentials are of base 2
    if WINDOW > 0:
        diagonal = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        diagonal = (first_position + 1) // BLOCK_N * BLOCK_N
        acc, top, total = attend(
            q,
            acc,
            top,
            total,
            k_head_ptr,
            v_head_ptr,
            pages_ptr,
            positions,
            0,
            diagonal,
            length,
            scale,
            HEAD_DIM,
            BLOCK_D,
            BLOCK_N,
            BLOCK_SIZE,
            TOKEN_STRIDE,
            WINDOW,
            False,
            STAGES,
        )
    acc, top, total = attend(
        q,
        acc,
        top,
        total,
        k_head_ptr,
        v_head_ptr,
        pages_ptr,
        positions,
        diagonal,
        end,
        length,
        scale,
        HEAD_DIM,
        BLOCK_D,
        BLOCK_N,
        BLOCK_SIZE,
        TOKEN_STRIDE,
        WINDOW,
        True,
        STAGES,
    )
    out_ptrs = out_ptr + (token * out_token_stride + head * HEAD_DIM)[:, None] + features[None, :]
    tl.store(out_ptrs, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=ok)

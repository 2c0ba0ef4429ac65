"""QK norm, rotary embedding, and the write of K and V to their pages, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import launch_next, to_e4m3, wait_previous


@triton.jit
def partner_of(features, ROTARY_DIM: tl.constexpr):
    """Of each feature, the one that it is rotated with."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    return tl.where(features < HALF, HALF, tl.where(features < ROTARY_DIM, -HALF, 0)) + features


@triton.jit
def rotated(
    x_ptrs,  # [heads, 1]: where heads begin
    norm_ptrs,  # [heads, 1]: where their norm weights begin, where NORM
    cos_ptr,
    sin_ptr,  # a token's, [ROTARY_DIM] fp32, of inferx_kernels.rope.Rotation
    x_scale,
    own_scale,
    partner_scale,  # [heads, features] fp32, of the products' features, where LATE
    features,
    mask,
    eps,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    NORM: tl.constexpr,
    LATE: tl.constexpr,
):
    """A tile of one token's heads, scaled, normed and rotated as asked. Both raw and result, fp32.

    Rotation takes every feature's partner in the other half from memory a second time: a tile
    cannot exchange its halves in registers.
    """
    partner = partner_of(features, ROTARY_DIM)
    x = tl.load(x_ptrs + features[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x_ptrs + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if LATE:
        x *= x_scale * own_scale
        y *= x_scale * partner_scale
    raw = x
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
        x *= scale * tl.load(norm_ptrs + features[None, :], mask=mask, other=0.0).to(tl.float32)
        y *= scale * tl.load(norm_ptrs + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + features, mask=features < ROTARY_DIM, other=1.0)
    sin = tl.load(sin_ptr + features, mask=features < ROTARY_DIM, other=0.0)
    return raw, x * cos[None, :] + y * sin[None, :]


@triton.jit
def write_token(
    x_ptrs,  # [heads, 1]: where the token's heads begin
    x_scale,
    own_scale,
    partner_scale,
    norm_ptrs,
    cos_ptr,
    sin_ptr,
    slot,
    q_ptrs,  # [heads, features]
    k_pages_ptr,
    v_pages_ptr,
    heads,
    features,
    ok,
    is_q,
    is_k,
    is_v,  # [heads, 1] each
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    NORM: tl.constexpr,
    LATE: tl.constexpr,
    FP8_PAGES: tl.constexpr,
):
    """Stores one token's q, and its k and v in their pages."""
    raw, x = rotated(
        x_ptrs,
        norm_ptrs,
        cos_ptr,
        sin_ptr,
        x_scale,
        own_scale,
        partner_scale,
        features,
        ok,
        eps,
        HEAD_DIM,
        ROTARY_DIM,
        NORM,
        LATE,
    )
    dtype = q_ptrs.dtype.element_ty
    tl.store(q_ptrs, x.to(dtype), mask=ok & is_q)
    page_at = slot * NUM_KV_HEADS * HEAD_DIM + features[None, :]
    k_at = page_at + (heads - NUM_HEADS)[:, None] * HEAD_DIM
    v_at = page_at + (heads - NUM_HEADS - NUM_KV_HEADS)[:, None] * HEAD_DIM
    k = x.to(dtype)  # rounded as q is, also on its way to e4m3
    v = raw.to(dtype)
    if FP8_PAGES:
        k = to_e4m3(k.to(tl.float32))
        v = to_e4m3(v.to(tl.float32))
    tl.store(k_pages_ptr + k_at, k, mask=ok & is_k & (slot >= 0))
    tl.store(v_pages_ptr + v_at, v, mask=ok & is_v & (slot >= 0))


@triton.jit(do_not_specialize=["num_tokens"])
def rope_write_kernel(
    qkv_ptr,  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
    x_scale_ptr,  # [num_tokens] fp32, where LATE
    w_scale_ptr,  # [(num_heads + 2 * num_kv_heads) * head_dim] fp32, where LATE
    norm_ptr,  # [num_heads + num_kv_heads, head_dim], where NORM
    cos_ptr,
    sin_ptr,  # [num_tokens, ROTARY_DIM] fp32
    slot_mapping_ptr,  # [num_tokens] int64; negative: nowhere
    q_ptr,  # [num_tokens, num_heads, head_dim]
    k_pages_ptr,
    v_pages_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim] each
    num_tokens,
    qkv_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,  # heads a program
    TOKENS: tl.constexpr,  # a program, one after the other
    ROTARY_DIM: tl.constexpr,
    NORM: tl.constexpr,
    LATE: tl.constexpr,
    FP8_PAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    features = tl.arange(0, BLOCK_D)
    launch_next(PDL)
    wait_previous(PDL)
    is_q = heads < NUM_HEADS
    is_k = (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    is_v = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS)
    in_head = (features < HEAD_DIM)[None, :]
    at = heads[:, None] * HEAD_DIM
    ok = in_head & (is_q | is_k | is_v)[:, None]
    own_scale = 1.0
    partner_scale = 1.0
    if LATE:  # as many bytes as a few tokens' features: read once for them all
        own_scale = tl.load(w_scale_ptr + at + features[None, :], mask=ok, other=0.0)
        partner = partner_of(features, ROTARY_DIM)
        partner_scale = tl.load(w_scale_ptr + at + partner[None, :], mask=ok, other=0.0)
    normed = tl.minimum(heads, NUM_HEADS + NUM_KV_HEADS - 1)[:, None] * HEAD_DIM
    first = tl.program_id(0).to(tl.int64) * TOKENS
    for token in range(first, tl.minimum(first + TOKENS, num_tokens)):
        write_token(
            qkv_ptr + token * qkv_stride + at,
            tl.load(x_scale_ptr + token) if LATE else 1.0,
            own_scale,
            partner_scale,
            norm_ptr + normed if NORM else norm_ptr,
            cos_ptr + token * ROTARY_DIM,
            sin_ptr + token * ROTARY_DIM,
            tl.load(slot_mapping_ptr + token),
            q_ptr + token * NUM_HEADS * HEAD_DIM + at + features[None, :],
            k_pages_ptr,
            v_pages_ptr,
            heads,
            features,
            ok,
            is_q[:, None],
            is_k[:, None],
            is_v[:, None],
            eps,
            NUM_HEADS,
            NUM_KV_HEADS,
            HEAD_DIM,
            ROTARY_DIM,
            NORM,
            LATE,
            FP8_PAGES,
        )

"""Attention of a step's tokens over paged K and V: decodes, prefill chunks, or both together.

A group's K and V are gathered once for all query heads that share a KV head. Scores, softmax and
sums are fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferx_kernels.attention_plan import KEY_CHUNK, AttentionGroup, AttentionPlan
from inferx_kernels.fp8 import movable


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """softmax(q k^T * scale) v of every token over its sequence's pages.

    q: [num_tokens, num_heads, head_dim]; k_pages, v_pages:
    [num_blocks, block_size, num_kv_heads, head_dim], this step's K and V written already; query
    head h uses KV head h // (num_heads // num_kv_heads). Returns a new tensor like q.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend = _attend_in_chunks if plan.in_chunks else _attend
    for group in plan.groups:
        queries = q if group.tokens is None else q.index_select(0, group.tokens)
        keys, values = _gather(k_pages, group), _gather(v_pages, group)
        result = attend(_by_kv_head(queries, group, k_pages.shape[2]) * scale, keys, values, group)
        result = _by_token(result, group, q.shape[1]).to(q.dtype)
        if group.tokens is None:
            return result
        tokens = group.tokens
        if group.computed is not None:
            tokens = tokens.index_select(0, group.computed)
            result = result.index_select(0, group.computed)
        out.index_copy_(0, tokens, result)
    return out


def _gather(pages: Tensor, group: AttentionGroup) -> Tensor:
    """The group's keys or values: [B * KV heads, K, head_dim] float32."""
    num_kv_heads, head_dim = pages.shape[2:]
    rows = movable(pages).view(-1, head_dim).index_select(0, group.keys).view(pages.dtype)
    return rows.view(group.num_tiles * num_kv_heads, -1, head_dim).float()


def _by_kv_head(q: Tensor, group: AttentionGroup, num_kv_heads: int) -> Tensor:
    """[B * Q, heads, head_dim] -> [B * KV heads, heads a KV head * Q, head_dim] float32."""
    _, num_heads, head_dim = q.shape
    q = q.view(group.num_tiles, -1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return q.permute(0, 2, 3, 1, 4).reshape(group.num_tiles * num_kv_heads, -1, head_dim).float()


def _by_token(out: Tensor, group: AttentionGroup, num_heads: int) -> Tensor:
    """What `_by_kv_head` did, undone."""
    head_dim = out.shape[-1]
    out = out.view(group.num_tiles, num_heads, -1, head_dim)
    return out.transpose(1, 2).reshape(-1, num_heads, head_dim)


def _attend(q: Tensor, k: Tensor, v: Tensor, group: AttentionGroup) -> Tensor:
    """q: [B * KV heads, M, head_dim]; k, v: [B * KV heads, K, head_dim]; returns one like q."""
    scores = torch.bmm(q, k.transpose(1, 2))
    if group.bias is not None:
        _add_bias(scores, group.bias)
    return torch.bmm(scores.softmax(-1), v)


def _attend_in_chunks(q: Tensor, k: Tensor, v: Tensor, group: AttentionGroup) -> Tensor:
    """`_attend`, adding up keys in chunks of one size with a running maximum (arXiv 2205.14135).

    What a token gets is independent of how many masked keys follow its own.
    """
    assert group.bias is not None
    top = q.new_full((*q.shape[:2], 1), torch.finfo(q.dtype).min)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[1], KEY_CHUNK):
        chunk = slice(start, start + KEY_CHUNK)
        scores = torch.bmm(q, k[:, chunk].transpose(1, 2))
        _add_bias(scores, group.bias[..., chunk])
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_top).exp_()
        kept = top.sub_(new_top).exp_()
        total.mul_(kept).add_(weights.sum(-1, keepdim=True))
        out.mul_(kept).add_(torch.bmm(weights, v[:, chunk]))
        top = new_top
    return out.div_(total)


def _add_bias(scores: Tensor, bias: Tensor) -> None:
    """scores: [B * KV heads, heads a KV head * Q, K] += bias: [B, 1, 1, Q, K]."""
    batch, _, _, num_queries, num_keys = bias.shape
    scores.view(batch, scores.shape[0] // batch, -1, num_queries, num_keys).add_(bias)

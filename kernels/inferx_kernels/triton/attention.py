"""Launching the attention kernels: decode rows, and prompt chunks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.rope import Rotation
from inferx_kernels.triton.attention_decode import (
    ITEM_WORDS,
    decode_attention_kernel,
    plan_decode_kernel,
)
from inferx_kernels.triton.attention_prefill import prefill_attention_kernel
from inferx_kernels.triton.device import num_multiprocessors, use_pdl
from inferx_kernels.triton.sizes import next_power_of_2
from inferx_kernels.triton.tuning import (
    DecodeConfig,
    PrefillConfig,
    decode_config,
    prefill_config,
)
from inferx_kernels.triton.workspace import workspace

ROWS_AT_ONCE = 256  # that a program adds up to find its own


class DecodePlan(NamedTuple):
    """A work list on the device, refilled every step in place. Opaque; see `plan_decode`."""

    items: Tensor  # [max_items, ITEM_WORDS] int32
    num_items: Tensor  # [1] int32
    chunk: int  # tokens
    window: int  # tokens; 0: none


def allocate_decode_plan(
    max_rows: int, max_tokens: int, *, chunk: int, window: int | None, device: torch.device
) -> DecodePlan:
    """Room to plan steps of up to max_rows rows that hold up to max_tokens keys together.

    chunk: tokens, a multiple of 128, that one program attends to at a time.
    """
    max_items = max_rows + max_tokens // chunk
    return DecodePlan(
        torch.empty(max_items, ITEM_WORDS.value, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        chunk,
        window or 0,
    )


def plan_decode(plan: DecodePlan, seq_lens: Tensor) -> None:
    """Lists the work of a step's rows. seq_lens: [num_rows] int32, this step's token included."""
    num_rows = seq_lens.shape[0]
    plan_decode_kernel[(num_rows,)](
        seq_lens,
        plan.items,
        plan.num_items,
        num_rows,
        CHUNK=plan.chunk,
        WINDOW=plan.window,
        BLOCK_ROWS=ROWS_AT_ONCE,
        BLOCK_CHUNKS=128,
        num_warps=1,
    )


def decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    plan: DecodePlan,
    scale: float,
    *,
    out: Tensor | None = None,
    config: DecodeConfig | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v of one token a row over its sequence's pages.

    q: [num_rows, num_heads, head_dim]; k_pages, v_pages:
    [num_blocks, block_size, num_kv_heads, head_dim], of q's type or e4m3, this step's written
    already; block_table: [num_rows, max_blocks] int32. Writes to `out`, contiguous like q, and
    returns it; a new tensor if None.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    _launch(q, q.shape[1], k_pages, v_pages, block_table, plan, scale, out, config)
    return out


def fused_decode_attention(
    qkv: Tensor,
    rotation: Rotation,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    plan: DecodePlan,
    scale: float,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    config: DecodeConfig | None = None,
) -> Tensor:
    """`decode_attention` of the rows' projections: norms and rotates q and k, and writes k and v.

    qkv: [num_rows, num_heads + 2 * num_kv_heads, head_dim]; norm_weight:
    [num_heads + num_kv_heads, head_dim]. Returns [num_rows, num_heads, head_dim].
    """
    num_heads = qkv.shape[1] - 2 * k_pages.shape[2]
    out = torch.empty(qkv.shape[0], num_heads, qkv.shape[2], dtype=qkv.dtype, device=qkv.device)
    _launch(
        qkv,
        num_heads,
        k_pages,
        v_pages,
        block_table,
        plan,
        scale,
        out,
        config,
        rotation=rotation,
        norm_weight=norm_weight,
        eps=eps,
    )
    return out


def _launch(
    q: Tensor,
    num_heads: int,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    plan: DecodePlan,
    scale: float,
    out: Tensor,
    config: DecodeConfig | None,
    *,
    rotation: Rotation | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    num_rows, _, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_pages.shape
    config = config or decode_config(head_dim, k_pages.element_size())
    group = num_heads // num_kv_heads
    max_items = plan.items.shape[0]
    outputs = max_items * num_heads
    scratch = workspace(q.device, floats=outputs * (head_dim + 2), counters=num_rows * num_kv_heads)
    tops_at, totals_at = outputs * head_dim, outputs * (head_dim + 1)
    programs = min(
        max_items * num_kv_heads,
        config.programs * num_multiprocessors(q.device),
    )
    pdl = use_pdl(q)
    options = {} if config.maxnreg is None else {"maxnreg": config.maxnreg}
    decode_attention_kernel[(programs,)](
        q,
        k_pages,
        v_pages,
        block_table,
        plan.items,
        plan.num_items,
        out,
        scratch.parts,
        scratch.parts[tops_at:],
        scratch.parts[totals_at:],
        scratch.counters,
        norm_weight,
        rotation.cos if rotation else None,
        rotation.sin if rotation else None,
        q.stride(0),
        block_table.stride(0),
        scale,
        eps,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        BLOCK_G=max(8, next_power_of_2(group)),
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        BLOCK_T=config.block_t,
        CHUNK=plan.chunk,
        WINDOW=plan.window,
        ROTARY_DIM=rotation.cos.shape[-1] if rotation else 0,
        FP8_PAGES=k_pages.dtype == torch.float8_e4m3fn,
        FUSED=rotation is not None,
        NORM=norm_weight is not None,
        STAGES=config.num_stages,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
        **options,
    )


def prefill_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    scale: float,
    *,
    out: Tensor | None = None,
    sliding_window: int | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """softmax(q k^T * scale) v of rows of any number of tokens, causal, over their pages.

    q: [num_tokens, num_heads, head_dim]; pages as for `decode_attention`; query_start:
    [num_rows + 1] int32, into q, whose first value need not be 0: rows before are left alone.
    Writes to `out`, [num_tokens, num_heads, head_dim], and returns it; a new tensor if None.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_pages.shape
    num_rows = seq_lens.shape[0]
    config = config or prefill_config(head_dim, k_pages.element_size())
    group = num_heads // num_kv_heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    options = {} if config.maxnreg is None else {"maxnreg": config.maxnreg}
    tiles = num_tokens // (config.block_m // group) + num_rows
    prefill_attention_kernel[(num_kv_heads, tiles)](
        q,
        k_pages,
        v_pages,
        block_table,
        seq_lens,
        query_start,
        out,
        num_rows,
        q.stride(0),
        out.stride(0),
        block_table.stride(0),
        scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, next_power_of_2(head_dim)),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_SIZE=block_size,
        BLOCK_ROWS=ROWS_AT_ONCE,
        WINDOW=sliding_window or 0,
        FP8_PAGES=k_pages.dtype == torch.float8_e4m3fn,
        STAGES=config.num_stages,
        num_warps=config.num_warps,
        **options,
    )
    return out

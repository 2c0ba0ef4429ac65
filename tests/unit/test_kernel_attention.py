"""Paged attention of the Triton kernels, against plain attention over each row's own keys."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx_kernels.norm import rms_norm
from inferx_kernels.rope import Rotation, apply_rope, plan_rope
from inferx_kernels.triton.attention import (
    allocate_decode_plan,
    decode_attention,
    fused_decode_attention,
    plan_decode,
    prefill_attention,
)
from inferx_kernels.triton.rows import LateScales, rope_write
from inferx_kernels.triton.tuning import DecodeConfig, PrefillConfig
from inferx_kernels.triton.widen import plan_widen, widen_pages

# query heads, KV heads, head size, tokens a page, sliding window, type of the pages
SHAPES = [
    pytest.param(9, 3, 64, 16, None, torch.bfloat16, id="SmolLM2"),
    pytest.param(14, 2, 80, 32, None, torch.bfloat16, id="7-heads-a-KV-head-of-80"),
    pytest.param(4, 4, 96, 64, None, cases.E4M3, id="no-groups-of-96-e4m3"),
    pytest.param(9, 3, 64, 16, 50, torch.bfloat16, id="window"),
    pytest.param(6, 2, 64, 64, 50, cases.E4M3, id="window-e4m3"),
]
LENGTHS = [1, 129, 64, 300]  # of one, two and three chunks
SMALL = DecodeConfig(32, 4, 2, 2)


def turn(positions: torch.Tensor, rotary_dim: int) -> Rotation:
    inv_freq = 10_000 ** -(torch.arange(0, rotary_dim, 2, device=positions.device) / rotary_dim)
    return plan_rope(positions, inv_freq, 1.0)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size", "window", "dtype"), SHAPES
)
def test_decode_rows_of_ragged_lengths(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    kv = cases.paged(
        LENGTHS,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    q = cases.randn(len(LENGTHS), num_heads, head_dim)
    plan = allocate_decode_plan(8, 1000, chunk=128, window=window, device=cases.DEVICE)
    plan_decode(plan, kv.seq_lens)
    for _ in range(2):  # the second finds the arrival counters as the first left them
        out = decode_attention(q, kv.k, kv.v, kv.block_table, plan, head_dim**-0.5, config=SMALL)
        for row in range(len(LENGTHS)):
            wanted = cases.attend(q[row : row + 1], *kv.sequence(row), head_dim**-0.5, window)
            assert cases.distance(out[row], wanted[0]) < cases.ROUNDING


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size", "window", "dtype"), SHAPES
)
def test_fused_decode_does_what_rotation_write_and_attention_do_one_after_the_other(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    kv = cases.paged(
        LENGTHS,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    apart = kv._replace(k=kv.k.clone(), v=kv.v.clone())
    qkv = cases.randn(len(LENGTHS), num_heads + 2 * num_kv_heads, head_dim)
    norm_weight = cases.rand(num_heads + num_kv_heads, head_dim, dtype=torch.bfloat16)
    rotation = turn(kv.seq_lens - 1, head_dim)
    plan = allocate_decode_plan(8, 1000, chunk=128, window=window, device=cases.DEVICE)
    plan_decode(plan, kv.seq_lens)
    scale = head_dim**-0.5
    out = fused_decode_attention(
        qkv,
        rotation,
        kv.k,
        kv.v,
        kv.block_table,
        plan,
        scale,
        norm_weight=norm_weight,
        eps=1e-6,
        config=SMALL,
    )
    last = kv.seq_lens.long() - 1
    page = kv.block_table.gather(1, last.unsqueeze(1) // block_size).squeeze(1).long()
    slots = page * block_size + last % block_size
    q = rope_write(qkv, rotation, apart.k, apart.v, slots, norm_weight=norm_weight, eps=1e-6)
    wanted = decode_attention(q, apart.k, apart.v, kv.block_table, plan, scale, config=SMALL)
    for written, reference in ((kv.k, apart.k), (kv.v, apart.v)):
        assert torch.equal(written.view(torch.uint8), reference.view(torch.uint8))
    assert cases.distance(out, wanted) < cases.ROUNDING


def test_rotation_and_write_follow_the_references_and_skip_negative_slots() -> None:
    num_heads, num_kv_heads, head_dim, rotary_dim = 9, 3, 40, 20
    qkv = cases.randn(4, num_heads + 2 * num_kv_heads, head_dim)
    norm_weight = cases.rand(num_heads + num_kv_heads, head_dim, dtype=torch.bfloat16)
    rotation = turn(torch.arange(4, device=cases.DEVICE), rotary_dim)
    slots = torch.tensor([3, 17, -1, 63], device=cases.DEVICE)
    k, v = (torch.zeros(4, 16, num_kv_heads, head_dim, device=cases.DEVICE) for _ in range(2))
    q = rope_write(qkv, rotation, k, v, slots, norm_weight=norm_weight, eps=1e-6)
    normed = rms_norm(qkv[:, : num_heads + num_kv_heads].float(), norm_weight.float(), 1e-6)
    rotated = apply_rope(normed, rotation)
    assert cases.distance(q, rotated[:, :num_heads]) < cases.ROUNDING
    kept = [0, 1, 3]
    stored = slots[kept]
    assert cases.distance(k.flatten(0, 1)[stored], rotated[kept, num_heads:]) < cases.ROUNDING
    assert torch.equal(v.flatten(0, 1)[stored], qkv[kept, num_heads + num_kv_heads :].float())
    assert int(v.flatten(0, 1).any(-1).any(-1).sum()) == 3


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size", "window", "dtype"), SHAPES
)
def test_prompt_chunks_of_ragged_lengths_behind_rows_that_are_left_alone(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    lens, queries = [5, 70, 40, 101], [1, 70, 3, 20]
    kv = cases.paged(
        lens, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    starts = torch.tensor([0, *queries]).cumsum(0).int().to(cases.DEVICE)
    q = cases.randn(sum(queries), num_heads, head_dim)
    out = torch.zeros_like(q)
    prefill_attention(
        q,
        kv.k,
        kv.v,
        kv.block_table[1:],
        kv.seq_lens[1:],
        starts[1:],
        head_dim**-0.5,
        out=out,
        sliding_window=window,
        config=PrefillConfig(32, 32, 4, 2),
    )
    assert not out[:1].any()
    for row in range(1, len(lens)):
        mine = slice(int(starts[row]), int(starts[row + 1]))
        wanted = cases.attend(q[mine], *kv.sequence(row), head_dim**-0.5, window)
        assert cases.distance(out[mine], wanted) < cases.ROUNDING


def test_widened_pages_hold_the_same_numbers_in_rows_of_their_own() -> None:
    lens = [5, 300, 129]
    kv = cases.paged(lens, num_kv_heads=3, head_dim=40, block_size=16, dtype=cases.E4M3)
    plan = plan_widen(kv.seq_lens, num_tokens=sum(lens), max_seq_len=max(lens))
    wide = widen_pages(kv.k, kv.v, kv.block_table, kv.seq_lens, plan, torch.bfloat16)
    copy = kv._replace(k=wide.k, v=wide.v, block_table=wide.block_table)
    for row in range(len(lens)):
        for got, wanted in zip(copy.sequence(row), kv.sequence(row), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("num_tokens", [3, 1025])
def test_late_scales_of_few_tokens_and_of_many(num_tokens: int) -> None:
    num_heads, num_kv_heads, head_dim = 1, 1, 16
    all_heads = num_heads + 2 * num_kv_heads
    product = cases.randn(num_tokens, all_heads, head_dim)
    late = LateScales(cases.rand(num_tokens) + 0.5, cases.rand(all_heads * head_dim) + 0.5)
    scales = late.x.view(-1, 1, 1) * late.weight.view(all_heads, head_dim)
    positions = torch.arange(num_tokens, device=cases.DEVICE)
    rotation = turn(positions, head_dim)
    shape = (num_tokens // 16 + 1, 16, num_kv_heads, head_dim)
    written = [torch.zeros(shape, dtype=torch.bfloat16, device=cases.DEVICE) for _ in range(4)]
    q = rope_write(product, rotation, *written[:2], positions, late=late)
    scaled = (product.float() * scales).to(torch.bfloat16)
    wanted = rope_write(scaled, rotation, *written[2:], positions)
    assert cases.distance(q, wanted) < cases.ROUNDING
    for ours, reference in zip(written[:2], written[2:], strict=True):
        assert cases.distance(ours, reference) < cases.ROUNDING

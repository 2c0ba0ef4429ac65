"""The decode kernels inside CUDA graphs, on Llama-3-8B's shapes and with the sizes chosen there."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx_kernels.rope import plan_rope
from inferx_kernels.triton.attention import (
    allocate_decode_plan,
    decode_attention,
    fused_decode_attention,
    plan_decode,
    prefill_attention,
)
from inferx_kernels.triton.linear import gemv
from inferx_kernels.triton.tuning import decode_chunk
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 32, 8, 128, 4096
DTYPES = [torch.bfloat16, cases.E4M3]


def pages(lens: list[int], dtype: torch.dtype) -> cases.Paged:
    return cases.paged(lens, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=64, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_graph_replays_with_other_lengths(dtype: torch.dtype) -> None:
    kv = pages([3000, 700, 64, 1500], dtype)
    q = cases.randn(4, HEADS, HEAD_DIM)
    chunk = decode_chunk(4, KV_HEADS, 4096)
    plan = allocate_decode_plan(4, 8000, chunk=chunk, window=None, device=cases.DEVICE)

    def step() -> Tensor:
        plan_decode(plan, kv.seq_lens)
        return decode_attention(q, kv.k, kv.v, kv.block_table, plan, HEAD_DIM**-0.5)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for lens in ([3000, 700, 64, 1500], [1, 511, 13, 512], [513, 1, 64, 1025]):
        kv.seq_lens.copy_(torch.tensor(lens))
        graph.replay()
        for row in range(4):
            wanted = cases.attend(q[row : row + 1], *kv.sequence(row), HEAD_DIM**-0.5)
            assert cases.distance(out[row], wanted[0]) < cases.ROUNDING


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_of_dependent_launches_gives_the_same_bits_every_time(dtype: torch.dtype) -> None:
    kv = pages([1300], dtype)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    layers = [
        (cases.randn(width, HIDDEN) * 0.02, cases.randn(HIDDEN, HIDDEN) * 0.02) for _ in range(8)
    ]
    gain = cases.rand(HIDDEN, dtype=torch.bfloat16)
    x = cases.randn(1, HIDDEN)
    inv_freq = 10_000 ** -(torch.arange(0, HEAD_DIM, 2, device=cases.DEVICE) / HEAD_DIM)
    rotation = plan_rope(kv.seq_lens - 1, inv_freq, 1.0)
    plan = allocate_decode_plan(1, 8000, chunk=512, window=None, device=cases.DEVICE)
    plan_decode(plan, kv.seq_lens)

    def step() -> Tensor:
        h = x * 1  # an ordinary kernel begins the chain
        for qkv_weight, o_weight in layers:
            qkv = gemv(h, qkv_weight, norm_weight=gain, eps=1e-5).view(1, -1, HEAD_DIM)
            attended = fused_decode_attention(
                qkv, rotation, kv.k, kv.v, kv.block_table, plan, HEAD_DIM**-0.5
            )
            h = gemv(attended.flatten(1), o_weight, residual=h)
        return h

    cases.check_replays_give_the_same_bits(step)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_prompt_with_the_sizes_chosen_by_default(dtype: torch.dtype) -> None:
    kv = pages([1111, 700], dtype)
    starts = torch.tensor([0, 1000, 1003], dtype=torch.int32, device=cases.DEVICE)
    q = cases.randn(1003, HEADS, HEAD_DIM)
    out = prefill_attention(q, kv.k, kv.v, kv.block_table, kv.seq_lens, starts, HEAD_DIM**-0.5)
    for row, mine in enumerate((slice(0, 1000), slice(1000, 1003))):
        wanted = cases.attend(q[mine], *kv.sequence(row), HEAD_DIM**-0.5)
        assert cases.distance(out[mine], wanted) < cases.ROUNDING

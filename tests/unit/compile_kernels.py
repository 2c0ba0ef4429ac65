"""Compiles every Triton kernel for an H200 as its launcher does, on a machine without a GPU.

The interpreter, through which the kernels' tests run there, knows no types: what it accepts need
not compile. Run as a program: an interpreted kernel cannot be compiled in the same process.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from inferx_kernels.linear import PackedLinear
from inferx_kernels.rope import Rotation
from inferx_kernels.sparse import COUNTS, FIGURES, Counters, SparseLinear, Threshold, pack_sparse
from inferx_kernels.triton import (
    attention,
    device,
    inputs,
    linear,
    rows,
    sampling,
    sparse_linear,
    sparse_summary,
    widen,
)
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


class H200:
    """As much of Triton's driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def only_compile() -> None:
    triton.runtime.driver.set_active(H200())
    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compiled
    for module in (attention, linear, rows, sparse_linear, sparse_summary):
        module.use_pdl = lambda tensor: True


def compile_linears() -> None:
    x = torch.zeros(1, 576, dtype=BF16)
    scale = torch.zeros(1536)
    residual = torch.zeros(1, 1536, dtype=BF16)
    for weight, weight_scale in (
        (torch.zeros(1536, 576, dtype=BF16), None),
        (torch.zeros(1536, 576, dtype=E4M3), scale),
    ):
        norm = {"norm_weight": x[0], "eps": 1e-5}
        linear.gemv(x, weight, weight_scale=weight_scale, silu_mul=True, **norm)
        linear.gemv(x, weight, weight_scale=weight_scale, residual=residual, bias=residual[0])
    wide = torch.zeros(33, 16_384, dtype=E4M3)
    weight = torch.zeros(4096, 16_384, dtype=E4M3)
    linear.skinny_linear(wide, weight, x_scale=scale, weight_scale=scale)
    linear.skinny_linear(x, torch.zeros(1536, 576, dtype=BF16), silu_mul=True)


def sparse_weight(features: int, dtype: torch.dtype, *, is_gated: bool = False) -> SparseLinear:
    bias, scale = torch.zeros(features, dtype=BF16), torch.zeros(features)
    weight = torch.zeros(features, 576, dtype=dtype)
    packed = PackedLinear(weight, bias, False, scale if dtype is E4M3 else None)
    return pack_sparse(packed, is_gated=is_gated)


def compile_sparse_linears() -> None:
    counters = Counters(torch.zeros(64, 4, COUNTS), torch.zeros(1, dtype=torch.int32))
    for num_tokens, dtype in ((1, BF16), (4, BF16), (1, E4M3), (4, E4M3)):
        x = torch.zeros(num_tokens, 576, dtype=BF16)
        sparse_linear.sparse_linear(
            x, sparse_weight(1552, dtype), Threshold(torch.zeros(1)),
            residual=x.new_zeros(num_tokens, 1552),
        )  # fmt: skip
        for features in (1552, 8208):  # other sizes are chosen for more than 8192
            sparse_linear.sparse_linear(
                x, sparse_weight(features, dtype, is_gated=True),
                Threshold(torch.zeros(1), torch.zeros(576)),
                norm_weight=x[0], eps=1e-5, counters=counters,
            )  # fmt: skip
    sites, widths = torch.zeros(64, dtype=torch.int64), torch.zeros(64)
    for num_tokens in (1, 4):
        counts = counters.ring[:, :num_tokens]
        sparse_summary.summarize_counts(counts, widths, sites, torch.zeros(64, FIGURES))


def compile_attention(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pages = torch.zeros(4, 64, num_kv_heads, head_dim, dtype=dtype)
    qkv = torch.zeros(2, num_heads + 2 * num_kv_heads, head_dim, dtype=BF16)
    q = qkv[:, :num_heads].contiguous()
    norm_weight = torch.zeros(num_heads + num_kv_heads, head_dim, dtype=BF16)
    lens, starts = torch.ones(2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    table = torch.zeros(2, 4, dtype=torch.int32)
    rotation = Rotation(*(torch.zeros(2, 1, head_dim) for _ in range(2)))
    cpu = torch.device("cpu")
    plan = attention.allocate_decode_plan(2, 1024, chunk=512, window=100, device=cpu)
    attention.plan_decode(plan, lens)
    attention.decode_attention(q, pages, pages, table, plan, 1.0)
    attention.fused_decode_attention(
        qkv, rotation, pages, pages, table, plan, 1.0, norm_weight=norm_weight
    )
    attention.prefill_attention(q, pages, pages, table, lens, starts, 1.0, sliding_window=None)
    attention.prefill_attention(q, pages, pages, table, lens, starts, 1.0, sliding_window=100)
    late = rows.LateScales(torch.zeros(2), torch.zeros(qkv[0].numel()))
    slots = torch.zeros(2, dtype=torch.int64)
    rows.rope_write(qkv, rotation, pages, pages, slots, norm_weight=norm_weight, late=late)
    widening = widen.plan_widen(lens, num_tokens=2, max_seq_len=1)
    widen.widen_pages(pages, pages, table, lens, widening, BF16)


def compile_rows() -> None:
    x, weight = torch.zeros(2, 4096, dtype=BF16), torch.zeros(4096, dtype=BF16)
    late = rows.LateScales(torch.zeros(2), torch.zeros(4096))
    rows.norm_rows(x, weight, 1e-5)
    rows.norm_rows(x, weight, 1e-5, residual=x.clone(), late=late, quantize=True)
    rows.norm_rows(x, None, 0.0, quantize=True)
    rows.silu_mul_rows(x)
    rows.silu_mul_rows(x, late=late, quantize=True)
    wide_late = rows.LateScales(torch.zeros(2), torch.zeros(28_672))
    rows.silu_mul_rows(torch.zeros(2, 28_672, dtype=BF16), late=wide_late, quantize=True)


def compile_sampling() -> None:
    ones, integers = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    sampling.sample(torch.zeros(2, 128_256), ones, integers, ones, ones, integers, integers)


def compile_inputs() -> None:
    integers = torch.zeros(3, dtype=torch.int32)
    tokens = torch.zeros(2, dtype=torch.int64)
    rotation = Rotation(*(torch.zeros(8, 1, 128) for _ in range(2)))
    pool, table = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int32)
    state = inputs.SlotState(pool, table, rotation)
    step_rows = inputs.StepRows(integers[:2], integers[:2], integers)
    step = inputs.StepInputs(tokens, tokens, rotation, integers[:2], table[:2])
    for max_query_len in (1, 20):
        inputs.prepare_inputs(step_rows, state, step, block_size=64, max_query_len=max_query_len)
    inputs.store_tokens(pool, integers[:2], integers[:2], tokens)


if __name__ == "__main__":
    only_compile()
    assert not device.INTERPRETED.value
    compile_linears()
    compile_sparse_linears()
    compile_attention(32, 8, 128, BF16)
    compile_attention(14, 2, 80, E4M3)
    compile_rows()
    compile_sampling()
    compile_inputs()

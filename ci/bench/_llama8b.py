"""Llama-3-8B's shapes with random data, and its linear layers by our kernels and by a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from inferx_kernels.fp8 import Quantized
from inferx_kernels.triton.linear import gemv, skinny_linear
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN, VOCAB, LAYERS = 32, 8, 128, 4096, 14336, 128_256, 32
LINEARS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "o": (HIDDEN, HIDDEN),
    "gate_up": (2 * FFN, HIDDEN),
    "down": (HIDDEN, FFN),
}
BLOCK_SIZE = 64
SCALE = HEAD_DIM**-0.5
EPS = 1e-5
E4M3 = torch.float8_e4m3fn
BF16 = torch.bfloat16


class Timed(NamedTuple):
    """What a case times: a call does `repeats` runs, each of so many bytes and operations."""

    run: Callable[[], Any]
    repeats: int = 1
    bytes: float = 0
    flops: float = 0
    error: float | None = None  # relative, against float32 or float64
    library: Callable[[], Any] | None = None
    floor_ms: float | None = None  # a step's weights and pages over the copy bandwidth


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def make_weight(features: int, width: int, fp8: bool) -> tuple[Tensor, Tensor | None]:
    weight = randn(features, width) * 0.02
    if not fp8:
        return weight, None
    scale = weight.abs().amax(1).float() / 448
    return (weight / scale.unsqueeze(1)).to(E4M3), scale


def own_linear(
    name: str,
    x: Tensor | Quantized,
    weight: tuple[Tensor, Tensor | None],
    gain: Tensor,
    residual: Tensor | None,
) -> Tensor:
    fused = {"residual": residual, "silu_mul": name == "gate_up"}
    if isinstance(x, Quantized):
        return skinny_linear(x.x, weight[0], x_scale=x.scale, weight_scale=weight[1], **fused)
    if len(x) > 1:
        return skinny_linear(x, weight[0], **fused)
    norm = gain if name in ("qkv", "gate_up") else None
    return gemv(x, weight[0], weight_scale=weight[1], norm_weight=norm, eps=EPS, **fused)


def library_linear(x: Tensor | Quantized, weight: Tensor) -> Tensor:
    if not isinstance(x, Quantized):
        return torch.mm(x, weight.T)
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(
        x.x, weight.T, scale_a=one, scale_b=one, out_dtype=BF16, use_fast_accum=True
    )


def make_pages(
    lens: list[int], dtype: torch.dtype, copies: int, block_size: int = BLOCK_SIZE
) -> tuple[list[Any], Tensor]:
    used = [-(-length // block_size) for length in lens]
    order = torch.randperm(sum(used)).int()
    block_table = torch.zeros(len(lens), max(used), dtype=torch.int32)
    for row, pages in enumerate(order.split(used)):
        block_table[row, : used[row]] = pages
    shape = (sum(used), block_size, KV_HEADS, HEAD_DIM)
    pages = [tuple(randn(*shape).to(dtype) for _ in range(2)) for _ in range(copies)]
    return pages, block_table.cuda()


def oracle(
    q: Tensor, pages: Any, block_table: Tensor, length: int, block_size: int = BLOCK_SIZE
) -> Tensor:
    tokens = torch.arange(length, device="cuda")
    slots = block_table[0, tokens // block_size].long() * block_size + tokens % block_size
    k, v = (
        tensor.flatten(0, 1)[slots].float().transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)
        for tensor in pages
    )
    seen = tokens <= tokens[length - len(q) :].unsqueeze(1)
    out = F.scaled_dot_product_attention(q.float().transpose(0, 1), k, v, seen, scale=SCALE)
    return out.transpose(0, 1)


def lengths(rows: int, context: int) -> list[int]:
    """Negative context: ragged, from 64 to its amount."""
    if context > 0:
        return [context] * rows
    generator = torch.Generator().manual_seed(1)
    return torch.randint(64, -context, (rows,), generator=generator).tolist()

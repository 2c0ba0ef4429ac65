"""A decode step of Llama-3-8B: our kernels, and libraries' products with our kernels between."""

from __future__ import annotations

import torch
from _llama8b import (
    BF16,
    BLOCK_SIZE,
    E4M3,
    EPS,
    HEAD_DIM,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    LINEARS,
    SCALE,
    VOCAB,
    Timed,
    library_linear,
    make_pages,
    make_weight,
    own_linear,
    randn,
)
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.attention import (
    allocate_decode_plan,
    decode_attention,
    fused_decode_attention,
    plan_decode,
)
from inferx_kernels.triton.linear import gemv
from inferx_kernels.triton.rows import (
    LateScales,
    Quantized,
    norm_rows,
    rope_write,
    silu_mul_rows,
)
from inferx_kernels.triton.tuning import decode_chunk
from torch import Tensor


def step_case(rows: int, context: int, fp8: bool, warm: bool) -> Timed:
    """A decode step: 32 layers and the LM head (bf16 logits' products), without the sampler."""
    layers = 1 if warm else LAYERS
    weights = [
        {name: make_weight(*shape, fp8) for name, shape in LINEARS.items()} for _ in range(layers)
    ]
    lm_head = randn(VOCAB, HIDDEN) * 0.02
    lens = [context] * rows
    copies = 1 if warm else min(layers, 8 if rows > 8 else layers)
    pages, block_table = make_pages(lens, E4M3 if fp8 else BF16, copies)
    plan = allocate_decode_plan(
        rows,
        max(8192, sum(lens)),
        chunk=decode_chunk(rows, KV_HEADS, max(lens)),
        window=None,
        device=block_table.device,
    )
    seq_lens = torch.tensor(lens, dtype=torch.int32, device="cuda")
    plan_decode(plan, seq_lens)
    x, gain = randn(rows, HIDDEN), torch.rand(HIDDEN, device="cuda", dtype=BF16) + 0.5
    angles = torch.rand(rows, 1, HEAD_DIM, device="cuda")
    rotation = Rotation(angles, angles)
    last = seq_lens.long() - 1
    slots = block_table.gather(1, last.unsqueeze(1) // BLOCK_SIZE).squeeze(1).long() * BLOCK_SIZE
    slots += last % BLOCK_SIZE

    def normed(h: Tensor) -> Tensor | Quantized:
        return h if rows == 1 else norm_rows(h, gain, EPS, quantize=fp8)

    def narrow(h: Tensor) -> Tensor | Quantized:
        return norm_rows(h, None, 0.0, quantize=True) if fp8 and rows > 1 else h

    def own() -> Tensor:
        h = x
        for i, layer in enumerate(weights):
            qkv = own_linear("qkv", normed(h), layer["qkv"], gain, None)
            attended = fused_decode_attention(
                qkv.view(rows, -1, HEAD_DIM), rotation, *pages[i % copies], block_table, plan, SCALE
            )
            h = own_linear("o", narrow(attended.flatten(1)), layer["o"], gain, h)
            gated = own_linear("gate_up", normed(h), layer["gate_up"], gain, None)
            h = own_linear("down", narrow(gated), layer["down"], gain, h)
        if rows == 1:
            return gemv(h, lm_head, norm_weight=gain, eps=EPS, out_dtype=torch.float32)
        return torch.mm(norm_rows(h, gain, EPS), lm_head.T)

    def library() -> Tensor:
        residual = x.clone()
        h = norm_rows(residual, gain, EPS, quantize=fp8)

        def linear(name: str, i: int, h: Tensor | Quantized) -> tuple[Tensor, LateScales | None]:
            weight, scale = weights[i][name]
            y = library_linear(h, weight)
            return y, LateScales(h.scale, scale) if isinstance(h, Quantized) else None

        def quantized(h: Tensor) -> Tensor | Quantized:
            return norm_rows(h, None, 0.0, quantize=True) if fp8 else h

        for i in range(layers):
            qkv, late = linear("qkv", i, h)
            k, v = pages[i % copies]
            q = rope_write(qkv.view(rows, -1, HEAD_DIM), rotation, k, v, slots, late=late)
            attended = decode_attention(q, k, v, block_table, plan, SCALE).flatten(1)
            o, late = linear("o", i, quantized(attended))
            h = norm_rows(o, gain, EPS, residual=residual, late=late, quantize=fp8)
            gate_up, late = linear("gate_up", i, h)
            down, late = linear("down", i, silu_mul_rows(gate_up, late=late, quantize=fp8))
            is_last = i == layers - 1
            h = norm_rows(
                down, gain, EPS, residual=residual, late=late, quantize=fp8 and not is_last
            )
        return torch.mm(h, lm_head.T)

    size = sum(a * b for a, b in LINEARS.values()) * LAYERS * (1 if fp8 else 2)
    size += 2 * VOCAB * HIDDEN + rows * context * KV_HEADS * HEAD_DIM * LAYERS * (2 if fp8 else 4)
    return Timed(own, 1, size, 0, None, library)

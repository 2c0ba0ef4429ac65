"""The kernels' benchmark cases on Llama-3-8B's shapes, and what a library takes for the same.

A case builds its data and returns what to time. Weights and pages rotate among copies that
together exceed the L2 cache, as they do from layer to layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from _decode_step import step_case
from _llama8b import (
    BF16,
    E4M3,
    EPS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LINEARS,
    SCALE,
    VOCAB,
    Timed,
    lengths,
    library_linear,
    make_pages,
    make_weight,
    oracle,
    own_linear,
    randn,
    relative,
)
from _sparse import MASKED, sparse_case
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.attention import (
    allocate_decode_plan,
    decode_attention,
    plan_decode,
    prefill_attention,
)
from inferx_kernels.triton.rows import (
    LateScales,
    Quantized,
    norm_rows,
    rope_write,
    silu_mul_rows,
)
from inferx_kernels.triton.sampling import sample
from inferx_kernels.triton.tuning import decode_chunk
from inferx_kernels.triton.widen import plan_widen, widen_pages
from torch import Tensor

L2_BYTES = 150e6  # copies of data together, so that none is found in the cache


class Case(NamedTuple):
    group: str
    name: str
    build: Callable[[bool], Timed]  # True: only to compile, as small as compiles the same


def linear_case(name: str, fp8: bool, tokens: int, warm: bool) -> Timed:
    features, width = LINEARS[name]
    size = features * width * (1 if fp8 else 2)
    copies = 1 if warm else max(3, int(L2_BYTES // size))
    weights = [make_weight(features, width, fp8) for _ in range(copies)]
    x, gain = randn(tokens, width), torch.rand(width, device="cuda", dtype=BF16) + 0.5
    residual = randn(tokens, features) if name in ("o", "down") else None
    given = norm_rows(x, None, 0.0, quantize=True) if fp8 else x
    taken = x if tokens == 1 else given
    values = taken.x.double() * taken.scale.unsqueeze(1) if isinstance(taken, Quantized) else taken
    wanted = values.double()
    if tokens == 1 and residual is None:
        wanted = F.rms_norm(wanted, (width,), gain.double(), EPS)
    wanted = wanted @ weights[0][0].double().T
    wanted = wanted if weights[0][1] is None else wanted * weights[0][1].double()
    if name == "gate_up":
        wanted = F.silu(wanted[:, :FFN]) * wanted[:, FFN:]
    wanted = wanted if residual is None else wanted + residual.double()

    def run(linear: Callable[[tuple[Tensor, Tensor | None]], Tensor]) -> None:
        for i in range(16):
            linear(weights[i % copies])

    def own(weight: tuple[Tensor, Tensor | None]) -> Tensor:
        return own_linear(name, taken, weight, gain, residual)

    return Timed(
        functools.partial(run, own),
        16,
        size,
        2 * tokens * features * width,
        relative(own(weights[0]), wanted),
        functools.partial(run, lambda weight: library_linear(given, weight[0])),
    )


def page_copies(size: int) -> int:
    """Of pages of so many bytes, for a decode step to take by turns."""
    return max(2, min(12, int(L2_BYTES // size)))


def decode_case(rows: int, context: int, fp8: bool, warm: bool) -> Timed:
    lens = lengths(rows, context)
    size = sum(lens) * KV_HEADS * HEAD_DIM * (2 if fp8 else 4)
    copies = 1 if warm else page_copies(size)
    pages, block_table = make_pages(lens, E4M3 if fp8 else BF16, copies)
    plan = allocate_decode_plan(
        rows,
        sum(lens),
        chunk=decode_chunk(rows, KV_HEADS, max(lens)),
        window=None,
        device=block_table.device,
    )
    plan_decode(plan, torch.tensor(lens, dtype=torch.int32, device="cuda"))
    q = randn(rows, HEADS, HEAD_DIM)

    def own(k: Tensor, v: Tensor) -> Tensor:
        return decode_attention(q, k, v, block_table, plan, SCALE)

    error = None
    if not warm:
        error = relative(own(*pages[0])[:1], oracle(q[:1], pages[0], block_table, lens[0]))
    repeats = max(copies, 4)
    return Timed(lambda: [own(*pages[i % copies]) for i in range(repeats)], repeats, size, 0, error)


def prefill_case(rows: int, queries: int, context: int, kind: str, warm: bool) -> Timed:
    length = queries + context
    pages, block_table = make_pages([length] * rows, BF16 if kind == "bf16" else E4M3, 1)
    seq_lens = torch.full((rows,), length, dtype=torch.int32, device="cuda")
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda") * queries
    q = randn(rows * queries, HEADS, HEAD_DIM)
    widening = plan_widen(seq_lens, num_tokens=rows * length, max_seq_len=length)

    def own() -> Tensor:
        k, v, table = *pages[0], block_table
        if kind == "fp8 widened":
            k, v, table = widen_pages(k, v, block_table, seq_lens, widening, BF16)
        return prefill_attention(q, k, v, table, seq_lens, starts, SCALE)

    error = None
    if not warm:
        last = slice(max(0, queries - 256), queries)
        error = relative(own()[last], oracle(q[last], pages[0], block_table, length))
    flops = 4 * HEADS * HEAD_DIM * rows * (queries * context + queries * (queries + 1) / 2)
    library = None
    if context == 0 and kind == "bf16":
        dense = q.view(rows, queries, HEADS, HEAD_DIM).transpose(1, 2)
        k, v = (randn(rows, KV_HEADS, queries, HEAD_DIM) for _ in range(2))

        def library() -> Tensor:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(dense, k, v, is_causal=True, enable_gqa=True)

    return Timed(own, 1, 0, flops, error, library)


def row_case(name: str, tokens: int, warm: bool) -> Timed:
    x, residual, gain = randn(tokens, HIDDEN), randn(tokens, HIDDEN), randn(HIDDEN)
    gate_up, qkv = randn(tokens, 2 * FFN), randn(tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
    late = LateScales(torch.rand(tokens, device="cuda"), torch.rand(2 * FFN, device="cuda"))
    angles = torch.rand(tokens, 1, HEAD_DIM, device="cuda")
    (k, v), _ = make_pages([tokens], E4M3, 1)[0][0], None
    slots = torch.randperm(tokens, device="cuda")
    run, width = {
        "norm": (lambda: norm_rows(x, gain, EPS), 4 * HIDDEN),
        "add, norm": (lambda: norm_rows(x, gain, EPS, residual=residual), 8 * HIDDEN),
        "late scales, add, norm, quantize": (
            lambda: norm_rows(x, gain, EPS, residual=residual, late=late, quantize=True),
            7 * HIDDEN,
        ),
        "quantize": (lambda: norm_rows(x, None, 0.0, quantize=True), 3 * HIDDEN),
        "silu mul": (lambda: silu_mul_rows(gate_up), 6 * FFN),
        "late scales, silu mul, quantize": (
            lambda: silu_mul_rows(gate_up, late=late, quantize=True),
            5 * FFN,
        ),
        "late scales, rope, write e4m3": (
            lambda: rope_write(qkv, Rotation(angles, angles), k, v, slots, late=late),
            2 * qkv[0].numel() + 2 * HIDDEN + 2 * KV_HEADS * HEAD_DIM,
        ),
    }[name]
    return Timed(lambda: [run() for _ in range(8)], 8, tokens * width)


def sampling_case(name: str, rows: int, flat: bool, warm: bool) -> Timed:
    """flat: logits of a normal distribution, so that 6,300 tokens hold 0.9 of the probability;
    otherwise they fall with the token's rank as in a text, and 60 hold it."""
    if flat:
        logits = 3 * torch.randn(rows, VOCAB, device="cuda")
    else:
        ranks = torch.rand(rows, VOCAB, device="cuda").argsort() + 1
        logits = 7 - 1.5 * ranks.log() + 0.3 * torch.randn(rows, VOCAB, device="cuda")
    ones, zeros = torch.ones(rows, device="cuda"), torch.zeros(rows, device="cuda")
    temperature, top_k, top_p, min_p = SAMPLERS[name]
    seeds = torch.arange(rows, device="cuda")
    settings = (ones * temperature, seeds * 0 + top_k, ones * top_p, zeros + min_p, seeds, seeds)
    repeats = 4
    return Timed(
        lambda: [sample(logits, *settings) for _ in range(repeats)],
        repeats,
        logits.nbytes,
        0,
        None,
        lambda: [logits.argmax(-1) for _ in range(repeats)],
    )


def big_linear_case(name: str, tokens: int, kind: str, warm: bool) -> Timed:
    features, width = LINEARS[name]
    weights = [make_weight(features, width, kind != "bf16") for _ in range(2)]
    x = randn(tokens, width)
    narrow = norm_rows(x, None, 0.0, quantize=True)
    one = torch.ones((), device="cuda")
    fast = kind.startswith("fast ")

    def run() -> None:
        for weight, scale in weights:
            if kind == "bf16":
                library_linear(x, weight)
                continue
            scales = (one, one)
            if kind.endswith("row-wise"):
                scales = narrow.scale.unsqueeze(1), scale.unsqueeze(0)
            torch._scaled_mm(narrow.x, weight.T, *scales, out_dtype=BF16, use_fast_accum=fast)

    return Timed(run, 2, 0, 2 * tokens * features * width)


DECODES = [
    (1, 272), (1, 2304), (1, 8192), (8, 16384), (32, 1152), (64, 2304), (64, -4096), (256, 1152),
]  # fmt: skip
PREFILLS = [(1, 2048, 0), (1, 8192, 0), (4, 2048, 0), (1, 1024, 8192), (16, 128, 1024)]
ROW_OPERATIONS = [
    "norm",
    "add, norm",
    "late scales, add, norm, quantize",
    "quantize",
    "silu mul",
    "late scales, silu mul, quantize",
    "late scales, rope, write e4m3",
]
SAMPLERS = {  # temperature, top_k, top_p, min_p
    "greedy": (0, 0, 1, 0),
    "temperature 1": (1, 0, 1, 0),
    "top_k 50": (1, 50, 1, 0),
    "top_p 0.9": (1, 0, 0.9, 0),
    "temperature 0.7, top_p 0.95": (0.7, 0, 0.95, 0),
    "temperature 0.6, top_k 20, top_p 0.95": (0.6, 20, 0.95, 0),
    "min_p 0.05": (1, 0, 1, 0.05),
}


def cases() -> Iterator[Case]:
    def case(group: str, name: str, build: Callable[..., Timed], *arguments: Any) -> Case:
        return Case(group, name, functools.partial(build, *arguments))

    for fp8 in (False, True):
        kind = "fp8" if fp8 else "bf16"
        for rows, context in ((1, 272), (1, 2304), (8, 272), (32, 1152), (64, 640)):
            yield case("step", f"{kind} {rows}x{context}", step_case, rows, context, fp8)
    for fp8 in (False, True):
        kind = "fp8" if fp8 else "bf16"
        for rows, context in DECODES:
            yield case("decode", f"{kind} {rows}x{context}", decode_case, rows, context, fp8)
    for rows, queries, context in PREFILLS:
        for kind in ("bf16", "fp8", "fp8 widened"):
            name = f"{kind} {rows}x{queries}+{context}"
            yield case("prefill", name, prefill_case, rows, queries, context, kind)
    for fp8 in (False, True):
        kind = "fp8" if fp8 else "bf16"
        for name in LINEARS:
            for tokens in (1, 8, 32, 64):
                yield case("linear", f"{kind} {name} {tokens}", linear_case, name, fp8, tokens)
    for fp8 in (False, True):
        kind = "fp8" if fp8 else "bf16"
        for name in LINEARS:
            for masked in MASKED:
                label = f"{kind} {name} 1 {masked:.0%}"
                yield case("sparse", label, sparse_case, name, fp8, 1, masked, False)
            for tokens in (2, 4):
                for one_mask in (False, True):
                    label = f"{kind} {name} {tokens} 50%{' one mask' if one_mask else ''}"
                    yield case("sparse", label, sparse_case, name, fp8, tokens, 0.5, one_mask)
    for name in SAMPLERS:
        for rows in (1, 32, 256):
            for flat in (False, True):
                label = f"{name}{', flat' if flat else ''} {rows}"
                yield case("sampling", label, sampling_case, name, rows, flat)
    for name in ROW_OPERATIONS:
        for tokens in (1, 32, 256, 2048, 8192):
            yield case("rows", f"{name} {tokens}", row_case, name, tokens)
    for tokens in (128, 256, 512, 2048, 8192):
        for name in LINEARS:
            for kind in (
                "bf16", "tensor-wise", "fast tensor-wise", "row-wise", "fast row-wise",
            ):  # fmt: skip
                label = f"{kind} {name} {tokens}"
                yield case("library linear", label, big_linear_case, name, tokens, kind)


def chosen_cases(groups: list[str]) -> list[Case]:
    return [case for case in cases() if not groups or case.group in groups]


def compile_share(groups: list[str], share: int, shares: int) -> None:
    """Runs every `shares`-th case once, so that its kernels lie in Triton's cache."""
    for case in chosen_cases(groups)[share::shares]:
        case.build(True).run()
    torch.cuda.synchronize()

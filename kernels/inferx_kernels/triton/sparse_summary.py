"""What a step's sparse products kept, summarized by one kernel behind them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inferx_kernels.sparse import COUNTS, FIGURES
from inferx_kernels.triton.device import launch_next, use_pdl, wait_previous
from inferx_kernels.triton.sizes import cdiv

_BLOCK = 128  # products of a program


@triton.jit
def summarize_kernel(
    counts_ptr,  # [products, MAX_TOKENS, COUNTS] fp32
    widths_ptr,  # [num_sites] fp32
    sites_ptr,  # [num_sites] int64
    out_ptr,  # [products, FIGURES] fp32
    num_sites,
    M: tl.constexpr,
    MAX_TOKENS: tl.constexpr,
    COUNTS: tl.constexpr,
    FIGURES: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = places < num_sites
    sites = tl.load(sites_ptr + places, mask=ok, other=0)
    widths = tl.load(widths_ptr + places, mask=ok, other=1.0)
    counts = counts_ptr + sites * (MAX_TOKENS * COUNTS)
    launch_next(PDL)
    wait_previous(PDL)
    union = tl.load(counts + 1, mask=ok, other=0.0)
    kept = tl.zeros([BLOCK], tl.float32)
    energy = tl.zeros([BLOCK], tl.float32)
    broken = tl.zeros([BLOCK], tl.float32)
    for m in tl.static_range(M):
        kept += tl.load(counts + m * COUNTS, mask=ok, other=0.0)
        lost = tl.load(counts + m * COUNTS + 2, mask=ok, other=0.0)
        total = tl.load(counts + m * COUNTS + 3, mask=ok, other=1.0)
        is_sound = (total > 0) & (total < float("inf"))
        energy += tl.where(is_sound, lost / total, 0.0)
        broken += tl.where(is_sound, 0.0, 1.0)
    out = out_ptr + sites * FIGURES
    tl.store(out, 1 - kept / (widths * M), mask=ok)
    tl.store(out + 1, union / widths, mask=ok)
    tl.store(out + 2, energy / M, mask=ok)
    tl.store(out + 3, broken, mask=ok)


def summarize_counts(counts: Tensor, widths: Tensor, sites: Tensor, out: Tensor) -> None:
    """`inferx_kernels.sparse.summarize_counts`. counts: of the first tokens of a contiguous tensor
    that has room for more."""
    num_tokens = counts.shape[1]
    pdl = use_pdl(counts)
    summarize_kernel[(cdiv(len(sites), _BLOCK),)](
        counts,
        widths,
        sites,
        out,
        len(sites),
        M=num_tokens,
        MAX_TOKENS=counts.stride(0) // COUNTS,
        COUNTS=COUNTS,
        FIGURES=FIGURES,
        BLOCK=_BLOCK,
        PDL=pdl,
        launch_pdl=pdl,
    )

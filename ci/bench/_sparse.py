"""The sparse products' benchmark cases: Llama-3-8B's shapes, with what is fused into each."""

from __future__ import annotations

from typing import Any

import torch
from _llama8b import EPS, LINEARS, Timed, library_linear, make_weight, own_linear, randn, relative
from inferx_kernels import sparse
from inferx_kernels.linear import PackedLinear
from inferx_kernels.sparse import COUNTS, Counters, SparseLinear, Threshold, pack_sparse
from inferx_kernels.triton.rows import norm_rows
from inferx_kernels.triton.sparse_linear import sparse_linear
from torch import Tensor

L2_BYTES = 150e6  # copies of data together, so that none is found in the cache
RUNS = 16
MASKED = (0.0, 0.25, 0.4, 0.5, 0.65)  # shares of a token's channels


def sparse_case(
    name: str, fp8: bool, tokens: int, masked: float, one_mask: bool, warm: bool
) -> Timed:
    """Its bytes are those of channels that some token keeps; one_mask: all tokens keep the same.

    Beside it stands the dense product: the library's in bf16, ours in fp8.
    """
    features, width = LINEARS[name]
    size = features * width * (1 if fp8 else 2)
    copies = 1 if warm else max(3, int(L2_BYTES // size))
    dense = [make_weight(features, width, fp8) for _ in range(copies)]
    weights = [_packed(*pair, is_gated=name == "gate_up") for pair in dense]
    x = randn(1 if one_mask else tokens, width).expand(tokens, width).contiguous()
    gain = torch.ones(width, device="cuda", dtype=x.dtype)
    residual = randn(tokens, features) if name in ("o", "down") else None
    fused: dict[str, Any] = {"residual": residual}
    if residual is None:
        fused |= {"norm_weight": gain, "eps": EPS}
    threshold = Threshold(_quantile(x.float().abs(), masked).view(1))
    step = torch.zeros(1, dtype=torch.int32, device="cuda")
    counters = Counters(torch.zeros(64, tokens, COUNTS, device="cuda"), step)
    given = norm_rows(x, None, 0.0, quantize=True) if fp8 and tokens > 1 else x

    def own(weight: SparseLinear) -> Tensor:
        return sparse_linear(x, weight, threshold, **fused, counters=counters)

    def run() -> None:
        for i in range(RUNS):
            own(weights[i % copies])

    def run_dense() -> None:
        for i in range(RUNS):
            weight = dense[i % copies]
            if fp8:
                own_linear(name, given, weight, gain, residual)
            else:
                library_linear(x, weight[0])

    error = relative(own(weights[0]), sparse.sparse_linear(x, weights[0], threshold, **fused))
    read = float(counters.ring[0, 0, 1]) / width
    flops = 2 * tokens * features * width * read
    return Timed(run, RUNS, size * read, flops, error, run_dense)


def _packed(weight: Tensor, scale: Tensor | None, *, is_gated: bool) -> SparseLinear:
    return pack_sparse(PackedLinear(weight, None, False, scale), is_gated=is_gated)


def _quantile(magnitudes: Tensor, share: float) -> Tensor:
    """A little more than the value, so that no rounding decides on which side a number lies."""
    place = round(share * magnitudes.numel())
    if not place:
        return magnitudes.new_zeros(())
    return magnitudes.flatten().kthvalue(place).values * 1.001

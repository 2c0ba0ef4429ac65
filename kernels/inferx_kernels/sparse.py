"""Linear layers that leave out the input channels whose activations hardly matter.

A channel is kept for a token unless its score is up to a threshold: |x|, or weight-aware, |x| times
the norm of the weights that it meets (WINA, arXiv 2505.19427). The reference is the masked dense
product; the kernel in `inferx_kernels.triton.sparse_linear` reads only what some token keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.activation import silu_mul
from inferx_kernels.fp8 import E4M3, movable
from inferx_kernels.linear import PackedLinear
from inferx_kernels.norm import rms_norm

COUNTS = 4  # numbers that `Counters` hold of a token
FIGURES = 4  # of a product: masked share, union density, masked energy, number of broken inputs
_LINE = 16  # bytes of an output row's piece that a thread loads


class SparseLinear(NamedTuple):
    """A weight by input channel: what a skipped channel leaves unread is contiguous."""

    weight: Tensor  # [in_features, out_features], bf16 or e4m3
    weight_scale: Tensor | None  # [out_features] fp32, of an e4m3 weight
    bias: Tensor | None  # [out_features]
    is_gated: bool  # output features are gate, up, gate, up, ...: silu(gate) * up is the result


class Threshold(NamedTuple):
    """A channel is left out where its score is up to `value`. Both are read on the device at each
    call, so that a change of their numbers reaches captured graphs."""

    value: Tensor  # [1] fp32
    column_norms: Tensor | None = None  # [in_features] fp32: scores are |x| times these


class Counters(NamedTuple):
    """Where a product writes what it kept, for each token: its channels, the channels that some
    token of the call kept, the energy sum(x^2) in channels not kept, and in all channels."""

    ring: Tensor  # [steps, tokens, COUNTS] fp32; tokens: at least a call's
    step: Tensor  # [1] int32: which of them a call writes


def pack_sparse(packed: PackedLinear, *, is_gated: bool = False) -> SparseLinear:
    """A copy of a weight that `pack_linear` made, by input channel.

    is_gated: the first half of the output features is gate, the second up; the copy alternates
    them. Raises ValueError for other types than bfloat16 and e4m3, and where a kernel could not
    load 16 bytes of a channel at a time.
    """
    weight = packed.weight.to_dense() if packed.is_blocked else packed.weight
    features, itemsize = weight.shape[0], weight.element_size()
    if weight.dtype not in (torch.bfloat16, E4M3):
        raise ValueError(f"sparse products take bfloat16 and e4m3 weights, not {weight.dtype}")
    if features * itemsize % _LINE:
        raise ValueError(
            f"a weight of {features} output features of {itemsize} bytes has no sparse product: "
            f"they have to be a multiple of {_LINE} bytes"
        )

    def ordered(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not is_gated:
            return tensor
        return tensor.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1).contiguous()

    columns = ordered(movable(weight))
    assert columns is not None
    return SparseLinear(
        columns.T.contiguous().view(weight.dtype),
        ordered(packed.weight_scale),
        ordered(packed.bias),
        is_gated,
    )


def sparse_linear(
    x: Tensor,
    packed: SparseLinear,
    threshold: Threshold,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    counters: Counters | None = None,
) -> Tensor:
    """rms_norm(x), masked, times the weight; then bias, the gated activation or the residual.

    x: [num_tokens, in_features]; norm_weight: [in_features], or None for x as it is; residual:
    [num_tokens, out_features]. A NaN is kept, and shows in the result. Returns [num_tokens,
    out_features], or half of them where the weight is gated, in x's dtype.
    """
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    values = x.float()
    scores = values.abs()
    if threshold.column_norms is not None:
        scores = scores * threshold.column_norms
    kept = ~(scores <= threshold.value)
    if counters is not None:
        counters.ring[counters.step, : len(x)] = _counted(values, kept)
    y = torch.where(kept, values, 0.0) @ packed.weight.float()
    if packed.weight_scale is not None:
        y *= packed.weight_scale
    if packed.bias is not None:
        y += packed.bias
    if packed.is_gated:
        y = silu_mul(torch.cat([y[:, ::2], y[:, 1::2]], dim=1))
    if residual is not None:
        y += residual
    return y.to(x.dtype)


def summarize_counts(counts: Tensor, widths: Tensor, sites: Tensor, out: Tensor) -> None:
    """What products kept of a step's tokens, on average: FIGURES of each. Inputs that are broken,
    not finite or zeros alone, count as such, and as no masked energy.

    counts: [num_products, num_tokens, COUNTS] fp32, as products counted them; widths: [num_sites]
    fp32, their input channels; sites: [num_sites] int64, the products to summarize. Writes those
    rows of out: [num_products, FIGURES] fp32.
    """
    kept, union, lost, total = counts[sites].unbind(-1)
    is_sound = (total > 0) & total.isfinite()
    columns = [
        1 - (kept / widths.unsqueeze(1)).mean(1),
        union[:, 0] / widths,
        torch.where(is_sound, lost / total, 0.0).mean(1),
        (~is_sound).sum(1),
    ]
    out[sites] = torch.stack(columns, 1)


def _counted(x: Tensor, kept: Tensor) -> Tensor:
    squares = x.square()
    union = kept.any(0).sum().expand(len(x))
    lost = squares.masked_fill(kept, 0.0)
    return torch.stack([kept.sum(1), union, lost.sum(1), squares.sum(1)], dim=1).float()

"""Linear layers over weights that are packed once, at load."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inferx_kernels.fp8 import quantize_rows
from inferx_kernels.invariance import TILE, by_tiles

_PIECE = 1 << 24  # elements of an e4m3 weight that are in fp32 at once: 64 MiB


class PackedLinear(NamedTuple):
    """A weight in the memory order that its device multiplies fastest. Opaque; see `linear`."""

    weight: Tensor
    bias: Tensor | None
    is_blocked: bool  # in oneDNN's blocked format
    weight_scale: Tensor | None = None  # [out_features] fp32, of an e4m3 weight


def pack_linear(
    weight: Tensor, bias: Tensor | None = None, weight_scale: Tensor | None = None
) -> PackedLinear:
    """Packs weight: [out_features, in_features] and bias: [out_features], of one dtype; or an
    e4m3 weight, which stays as it is, with weight_scale: [out_features] fp32."""
    if weight_scale is not None or not _has_blocked_format(weight):
        return PackedLinear(weight.contiguous(), bias, False, weight_scale)
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TILE)
    return PackedLinear(blocked, bias, True)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x: [num_tokens, in_features] -> [num_tokens, out_features], in x's dtype.

    Where the weight is e4m3, x is quantized too, each token by its own largest magnitude.
    """
    if packed.weight_scale is not None:
        return _linear_e4m3(x, packed.weight, packed.weight_scale, packed.bias)
    return by_tiles(lambda tile: _linear(tile, packed), x)


def column_norms(packed: PackedLinear) -> Tensor:
    """The Euclidean norm of each input feature's weights: [in_features] fp32."""
    weight = packed.weight.to_dense() if packed.is_blocked else packed.weight
    squares = torch.zeros(weight.shape[1], dtype=torch.float32, device=weight.device)
    step = max(1, _PIECE // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = weight[start : start + step].float()
        if packed.weight_scale is not None:
            rows.mul_(packed.weight_scale[start : start + step].unsqueeze(-1))
        squares += rows.square().sum(0)
    return squares.sqrt()


def _linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if not packed.is_blocked:
        return F.linear(x, packed.weight, packed.bias)
    num_tokens = x.shape[0]
    padding = _rounded_up(num_tokens) - num_tokens
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    out = torch.ops.mkldnn._linear_pointwise(x, packed.weight, packed.bias, "none", [], "")
    return out[:num_tokens]


def _linear_e4m3(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies in fp32, which e4m3 numbers' products are exact in, and scales the sums."""
    numbers, x_scale = quantize_rows(x)
    numbers = numbers.float()
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    step = max(1, _PIECE // weight.shape[1])
    for start in range(0, len(weight), step):
        features = slice(start, start + step)
        sums = by_tiles(partial(F.linear, weight=weight[features].float()), numbers)
        sums.mul_(x_scale.unsqueeze(-1)).mul_(weight_scale[features])
        out[:, features] = sums if bias is None else sums.add_(bias[features])
    return out


def _rounded_up(num_tokens: int) -> int:
    """The next of a few sizes: a power of two up to 16, then at most an eighth more, or 16.

    oneDNN generates code for each number of tokens: milliseconds and half a megabyte, kept.
    """
    octave = 1 << (num_tokens - 1).bit_length()
    granule = octave if octave <= 16 else max(16, octave // 8)
    return -(-num_tokens // granule) * granule


def _has_blocked_format(weight: Tensor) -> bool:
    """oneDNN's blocked weights are 1.1 to 3 times as fast on CPUs at 1 to 64 tokens."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if weight.dtype is torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return True

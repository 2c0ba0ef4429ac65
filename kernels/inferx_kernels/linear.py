"""Linear layers over weights that are packed once, at load."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from inferx_kernels.invariance import TILE, by_tiles


class PackedLinear(NamedTuple):
    """A weight in the memory order that its device multiplies fastest. Opaque; see `linear`."""

    weight: Tensor
    bias: Tensor | None
    is_blocked: bool  # in oneDNN's blocked format
    weight_scale: Tensor | None = None  # [out_features] fp32, of an e4m3 weight


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Packs weight: [out_features, in_features] and bias: [out_features], of one dtype."""
    if not _has_blocked_format(weight):
        return PackedLinear(weight.contiguous(), bias, False)
    blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TILE)
    return PackedLinear(blocked, bias, True)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """x: [num_tokens, in_features] -> [num_tokens, out_features], in x's dtype."""
    return by_tiles(lambda tile: _linear(tile, packed), x)


def _linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if not packed.is_blocked:
        return F.linear(x, packed.weight, packed.bias)
    num_tokens = x.shape[0]
    padding = _rounded_up(num_tokens) - num_tokens
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    out = torch.ops.mkldnn._linear_pointwise(x, packed.weight, packed.bias, "none", [], "")
    return out[:num_tokens]


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

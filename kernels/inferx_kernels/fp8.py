"""e4m3 numbers and their scales: what the Triton kernels quantize to, in PyTorch.

e4m3 (torch.float8_e4m3fn, arXiv 2209.05433) has 4 significant bits and ends at 448. A row, which
is a token's activations or an output feature's weights, has one scale, its largest magnitude over
448: number * scale is the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
_LEAST_MAGNITUDE = 1e-10  # a row of zeros has a scale too
_PIECE = 1 << 22  # elements of a weight that are in fp32 at once: 16 MiB a copy


class Quantized(NamedTuple):
    """e4m3 numbers with one scale a row: number * scale is the value."""

    x: Tensor  # [num_rows, features] e4m3
    scale: Tensor  # [num_rows] fp32


def to_e4m3(x: Tensor) -> Tensor:
    """The nearest e4m3 numbers, ties to even, saturating at 448. NaN stays NaN."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)


def quantize_rows(x: Tensor) -> Quantized:
    """x: [num_rows, features] of any floating type; computed in fp32."""
    x = x.float()
    scale = x.abs().amax(-1).clamp_(min=_LEAST_MAGNITUDE).div_(E4M3_MAX)
    return Quantized(to_e4m3(x / scale.unsqueeze(-1)), scale)


def quantize_weight(weight: Tensor) -> Quantized:
    """`quantize_rows` of weight: [out_features, in_features], a piece at a time."""
    return _concatenated([quantize_rows(weight[rows]) for rows in _pieces(weight)])


def requantize_weight(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Quantized:
    """Scales per output feature for a weight that has them per block; its numbers are rounded
    again where a block of their row has a smaller scale than the row now.

    weight: [out_features, in_features] e4m3; scale: [row_blocks, column_blocks] of any floating
    type, a block's numbers times its scale being the values; block: a block's [rows, columns],
    fewer at the weight's end.
    """
    height, width = block
    pieces = []
    for rows in _pieces(weight):
        numbers = weight[rows].float()
        row_blocks = torch.arange(rows.start, rows.start + len(numbers), device=scale.device)
        scales = scale.float().index_select(0, row_blocks // height)
        pieces.append(quantize_rows(numbers.mul_(_widened(scales, width, numbers.shape[1]))))
    return _concatenated(pieces)


def movable(tensor: Tensor) -> Tensor:
    """The tensor itself, or an e4m3 tensor's bytes: not all that moves numbers moves e4m3."""
    return tensor.view(torch.uint8) if tensor.dtype is E4M3 else tensor


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """torch.cat of tensors of one type, which may be e4m3."""
    return torch.cat([movable(tensor) for tensor in tensors]).view(tensors[0].dtype)


def _widened(scales: Tensor, width: int, num_columns: int) -> Tensor:
    """[rows, column_blocks] -> [rows, num_columns], each `width` times."""
    return scales.repeat_interleave(width, 1)[:, :num_columns]


def _pieces(weight: Tensor) -> Iterator[slice]:
    step = max(1, _PIECE // weight.shape[1])
    return (slice(start, start + step) for start in range(0, weight.shape[0], step))


def _concatenated(pieces: list[Quantized]) -> Quantized:
    if len(pieces) == 1:
        return pieces[0]
    return Quantized(concatenate([p.x for p in pieces]), torch.cat([p.scale for p in pieces]))

"""Rotary position embedding (arXiv 2104.09864) on the halves of a head, as Hugging Face does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.invariance import by_tiles


class Rotation(NamedTuple):
    """A step's angles, the same for every layer and head: made once."""

    cos: Tensor  # [num_tokens, 1, rotary_dim] float32
    sin: Tensor  # [num_tokens, 1, rotary_dim] float32, negative in the first half


def plan_rope(positions: Tensor, inv_freq: Tensor, scaling: float) -> Rotation:
    """positions: [num_tokens] int64; inv_freq: [rotary_dim / 2] float32, radians per token;
    scaling: a factor on cos and sin (yarn's attention factor)."""
    angles = positions.view(-1, 1, 1).float() * inv_freq
    cos, sin = (by_tiles(turn, angles).mul_(scaling) for turn in (torch.cos, torch.sin))
    return Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def apply_rope(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotates the first rotary_dim features of every head; the rest passes through.

    x: [num_tokens, num_heads, head_dim], query and key heads alike. Returns a new tensor in x's
    dtype, computed in fp32.
    """
    rotary_dim = rotation.cos.shape[-1]
    turning = x[..., :rotary_dim].float()
    swapped = turning.roll(rotary_dim // 2, -1)  # second half, first half
    turned = (turning * rotation.cos).add_(swapped.mul_(rotation.sin)).to(x.dtype)
    return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), -1)

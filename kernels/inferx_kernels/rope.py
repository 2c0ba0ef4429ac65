"""Rotary position embedding (arXiv 2104.09864) on the halves of a head, as Hugging Face does."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_cos_sin(positions: Tensor, inv_freq: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """cos and sin of every token's angles, times `scaling` (yarn's attention factor).

    positions: [num_tokens] int64; inv_freq: [rotary_dim / 2] float32, radians per token.
    Returns two float32 tensors [num_tokens, rotary_dim / 2].
    """
    angles = positions.unsqueeze(-1).float() * inv_freq
    return angles.cos().mul_(scaling), angles.sin().mul_(scaling)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first rotary_dim features of every head; the rest passes through.

    x: [num_tokens, num_heads, head_dim], query and key heads alike; cos, sin:
    [num_tokens, rotary_dim / 2] float32. Returns a new tensor in x's dtype, computed in fp32.
    """
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    out[..., :half] = (first * cos).sub_(second * sin)
    out[..., half : 2 * half] = (second * cos).add_(first * sin)
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out

"""RMS norm (arXiv 1910.07467), alone and after a residual addition."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from inferx_kernels.invariance import by_tiles


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in fp32.

    x: [num_tokens, hidden] or [num_tokens, num_heads, head_dim]; weight: [hidden], [head_dim], or
    [num_heads, head_dim] where heads differ. Returns a new tensor in x's dtype.
    """

    def norm(x: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x, weight.shape[-1:], None, eps).mul_(weight)

    return by_tiles(norm, x)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds x to `residual` in place and returns `rms_norm(residual, weight, eps)`.

    x, residual: [num_tokens, hidden], of one dtype.
    """
    return rms_norm(residual.add_(x), weight, eps)

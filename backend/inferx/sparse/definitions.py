"""What sparsity means here. What is computed elsewhere in another way, as the probes do, is tested
against it.

A gated FFN has no exact zeros, so an activation counts as inactive by its magnitude: its channel
is masked where |x| <= threshold. x: [..., channels] of any floating type; a mask is a bool tensor
of x's shape, true where a channel is kept. What is counted is a number for each token, float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sparsity(x: Tensor, threshold: float) -> Tensor:
    """S_threshold(x), the share of channels with |x| <= threshold: [..., channels] -> [...]."""
    return (x.abs() <= threshold).mean(-1, dtype=torch.float32)


def threshold_mask(x: Tensor, threshold: float) -> Tensor:
    """Keeps all but |x| <= threshold: its masked share is S_threshold(x). A NaN is kept, so that
    it shows in the output, as without a mask.
    """
    return ~(x.abs() <= threshold)


def topk_mask(x: Tensor, k_ratio: float) -> Tensor:
    """Keeps the round(k_ratio * channels) largest |x| of each token, no more where some are equal.

    Raises ValueError where k_ratio is not within 0..1.
    """
    if not 0 <= k_ratio <= 1:
        raise ValueError(f"k_ratio is {k_ratio}, and is a share: 0 to 1")
    largest = x.abs().topk(round(k_ratio * x.shape[-1]), dim=-1, sorted=False).indices
    return torch.zeros_like(x, dtype=torch.bool).scatter_(-1, largest, True)


def masked_share(kept: Tensor) -> Tensor:
    """The share of channels that are not kept: [..., channels] bool -> [...]."""
    return (~kept).mean(-1, dtype=torch.float32)


def masked_energy(x: Tensor, kept: Tensor) -> Tensor:
    """rho, the share of sum(x^2) in channels that are not kept: [...]. Of zeros alone it is 0."""
    squares = x.float().square()
    total = squares.sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
    return squares.mul_(~kept).sum(-1) / total


def union_density(kept: Tensor) -> float:
    """The share of channels that some token of the batch keeps, kept: [num_tokens, channels].

    It is what one pass over the weights has to read for all of them.
    """
    return kept.any(0).mean(dtype=torch.float32).item()

"""Rotary frequencies: the plain ones and the published ways of stretching them to longer texts.

Each equals what transformers computes for the same configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferx.model.config import ModelConfig

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


def rope_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies, float32 [rotary_dim / 2] on the CPU, and the factor on cos and sin."""
    rope = config.rope
    plain = plain_frequencies(rope.theta, rope.rotary_dim)
    rope_type = rope.scaling.get("rope_type", "default")
    stretch = _STRETCHES.get(rope_type)
    if stretch is None:
        raise ValueError(f"rope_type {rope_type!r} is none of {', '.join(SUPPORTED_ROPE_TYPES)}")
    return stretch(plain, config, rope.scaling)


def plain_frequencies(theta: float, rotary_dim: int) -> Tensor:
    """theta^(-2i / rotary_dim), in radians per token: [rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / torch.pow(theta, exponents)


def llama3_frequencies(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, a ramp between."""
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    rotations = context * plain / (2 * math.pi)  # within the original context
    smooth = ((rotations - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / scaling["factor"] + smooth * plain


def _default(plain: Tensor, config: ModelConfig, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    return plain, 1.0


def _linear(plain: Tensor, config: ModelConfig, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Position interpolation (arXiv 2306.15595)."""
    return plain / scaling["factor"], 1.0


def _dynamic(plain: Tensor, config: ModelConfig, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Dynamic NTK: the base grows with texts beyond max_position_embeddings, which are refused
    here, so that what a request gets never depends on the others in its batch."""
    return plain, 1.0


def _llama3(plain: Tensor, config: ModelConfig, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    return llama3_frequencies(plain, scaling), 1.0


def _yarn(plain: Tensor, config: ModelConfig, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071), with DeepSeek's mscale."""
    context = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or config.max_position_embeddings / context
    dim = config.rope.rotary_dim

    def dim_of(rotations: float) -> float:
        """The feature that turns `rotations` times within the original context."""
        return (
            dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(config.rope.theta))
        )

    low = dim_of(scaling.get("beta_fast") or 32)
    high = dim_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    interpolate = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return plain / factor * interpolate + plain * (1 - interpolate), _yarn_scaling(scaling, factor)


def _yarn_scaling(scaling: dict[str, Any], factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)


_STRETCHES: dict[str, Callable[[Tensor, ModelConfig, dict[str, Any]], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}

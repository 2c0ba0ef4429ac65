"""Random weights of a model's shape, made on its device: for benchmarks, where no file is needed.

The setting's name and meaning are those of vLLM's `load_format`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from inferx.model.config import ModelConfig
from inferx.model.weights import llama_like_shapes

_STD = 0.02  # what Llama-like models are initialized with


def dummy_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a fused architecture once, the same ones every time on a kind of device.

    Matrices and biases are normal with a deviation of 0.02, norms' weights lie around 1, so that
    activations keep the range that a trained model's have.
    """
    generator = torch.Generator(device).manual_seed(0)
    for name, shape in llama_like_shapes(config).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        yield name, tensor.normal_(mean, _STD, generator=generator)

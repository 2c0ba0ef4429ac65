"""Layers with their weights, as the fused implementations put them together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from inferx_kernels import ops
from torch import Tensor


class Linear:
    """Linear layers that read the same input, fused into one.

    Its parts are loaded by their index; when all have come, they are packed for the device.
    """

    def __init__(
        self, num_parts: int = 1, *, bias: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._num_parts = num_parts
        self._dtype, self._device = dtype, device
        kinds = ("weight", "bias") if bias else ("weight",)
        self._parts: dict[str, dict[int, Tensor]] = {kind: {} for kind in kinds}
        self._packed: ops.PackedLinear | None = None

    def load(self, kind: str, tensor: Tensor, part: int = 0) -> None:
        """Takes a part's "weight": [its features, in_features], or "bias": [its features]."""
        self._parts[kind][part] = tensor.to(self._device, self._dtype)
        if all(len(parts) == self._num_parts for parts in self._parts.values()):
            fused = {
                kind: torch.cat([parts[i] for i in range(self._num_parts)])
                for kind, parts in self._parts.items()
            }
            self._parts.clear()
            self._packed = ops.pack_linear(fused["weight"], fused.get("bias"))

    @property
    def packed(self) -> ops.PackedLinear:
        assert self._packed is not None, "its weights are not loaded"
        return self._packed

    def __call__(self, x: Tensor) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, all parts' features]."""
        return ops.linear(x, self.packed)


class RMSNorm:
    """`weight` [features], or [num_heads, features] where heads differ."""

    def __init__(self, *shape: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(shape, dtype=dtype, device=device)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds x to the residual in place, and returns the sum's norm."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


class Embedding:
    """The tokens' vectors: [vocab, hidden]."""

    def __init__(self, vocab: int, hidden: int, *, dtype: torch.dtype, device: torch.device):
        self.weight = torch.empty(vocab, hidden, dtype=dtype, device=device)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.weight)

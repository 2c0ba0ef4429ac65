"""Layers with their weights, as the fused implementations put them together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from inferx_kernels import ops
from torch import Tensor

from inferx.model.config import Fp8Weights


class Linear:
    """Linear layers that read the same input, fused into one.

    Its parts are loaded by their index; when all have come, they are packed for the device. With
    `fp8` the packed weight is e4m3, with a scale an output feature; a part that comes in another
    type is quantized.
    """

    def __init__(
        self,
        num_parts: int = 1,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        fp8: Fp8Weights | None = None,
    ) -> None:
        self._num_parts = num_parts
        self._dtype, self._device = dtype, device
        self._fp8 = fp8
        kinds = ["weight", *["bias"] * bias, *["weight_scale"] * (fp8 is not None)]
        self._parts: dict[str, dict[int, Tensor]] = {kind: {} for kind in kinds}
        self._packed: ops.PackedLinear | None = None

    def load(self, kind: str, tensor: Tensor, part: int = 0) -> None:
        """Takes a part's "weight": [its features, in_features], or "bias": [its features].

        Before a weight that is e4m3 comes its "weight_scale" of any floating type: [its features],
        or [row_blocks, column_blocks] of fp8.block.
        """
        if kind == "weight" and self._fp8 is not None:
            self._load_e4m3(tensor.to(self._device), part, self._fp8)
        else:
            dtype = torch.float32 if kind == "weight_scale" else self._dtype
            self._parts[kind][part] = tensor.to(self._device, dtype)
        if all(len(parts) == self._num_parts for parts in self._parts.values()):
            fused = {
                kind: ops.concatenate([parts[i] for i in range(self._num_parts)])
                for kind, parts in self._parts.items()
            }
            self._parts.clear()
            self._packed = ops.pack_linear(
                fused["weight"], fused.get("bias"), fused.get("weight_scale")
            )

    def _load_e4m3(self, weight: Tensor, part: int, fp8: Fp8Weights) -> None:
        scale = self._parts["weight_scale"].get(part)
        if scale is None:
            weight, scale = ops.quantize_weight(weight)
        elif scale.ndim == 2:
            assert fp8.block is not None
            weight, scale = ops.requantize_weight(weight, scale, fp8.block)
        self._parts["weight"][part], self._parts["weight_scale"][part] = weight, scale

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

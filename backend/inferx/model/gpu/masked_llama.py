"""Decode steps of a few tokens on the sparse path: GpuLlama with masked products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inferx.model.activations import Projection
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import StepAttention
from inferx.model.gpu.llama import GpuLlama, layer_input, normed, qk_norm_of
from inferx.model.gpu.masked import GpuRows, Products
from inferx.model.gpu.products import skinny, vector
from inferx.model.layers import RMSNorm
from inferx.model.llama import Layer, LlamaForCausalLM


class MaskedLlama(GpuLlama):
    """Products that the rows do not mask are GpuLlama's own."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        dtype: torch.dtype,
        rows: GpuRows,
        indices: Sequence[int] | None = None,
    ) -> None:
        """indices: of the layers that there are, all unless given."""
        chosen = range(len(model.layers)) if indices is None else indices
        super().__init__(model, dtype, [model.layers[index] for index in chosen])
        self._rows = rows
        self._masked = [rows.layers[index] for index in chosen]

    def forward(self, step: StepAttention, kv: list[KVCache]) -> Tensor:
        step.plan()
        h = self._model.embed_tokens(step.inputs.token_ids)
        for layer, masked, cache in zip(self._layers, self._masked, kv, strict=True):
            h = self._masked_layer(h, layer, masked, step, cache)
        self._rows.record(len(h))
        return normed(h, self._model.norm)

    def _masked_layer(
        self, h: Tensor, layer: Layer, masked: Products, step: StepAttention, kv: KVCache
    ) -> Tensor:
        def product(
            name: Projection,
            x: Tensor,
            norm: RMSNorm | None = None,
            residual: Tensor | None = None,
        ) -> Tensor:
            if name in masked:
                return masked[name](x, norm=norm, residual=residual)
            return self._dense(name, x, layer, norm, residual)

        qkv = product("qkv", h, layer.input_norm)
        attended = step.decode(qkv, kv, layer.sliding_window, *qk_norm_of(layer))
        h = product("o", attended, residual=h)
        gated = product("gate_up", h, layer.post_attention_norm)
        return product("down", gated, residual=h)

    def _dense(
        self,
        name: Projection,
        x: Tensor,
        layer: Layer,
        norm: RMSNorm | None,
        residual: Tensor | None,
    ) -> Tensor:
        packed = layer.products()[name].packed
        silu_mul = name == "gate_up"
        if len(x) == 1:
            weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            return vector(
                x, packed, norm_weight=weight, eps=eps, residual=residual, silu_mul=silu_mul
            )
        given = layer_input(x, norm, packed)
        return skinny(given, packed, dtype=self._dtype, residual=residual, silu_mul=silu_mul)

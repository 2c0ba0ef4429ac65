"""A Llama-like model's forward pass in our kernels, over the weights of a LlamaForCausalLM."""

from __future__ import annotations

import torch
from inferx_kernels.linear import PackedLinear
from inferx_kernels.triton.linear import gemv
from inferx_kernels.triton.rows import LateScales, Quantized, norm_rows, silu_mul_rows
from torch import Tensor

from inferx.model.batch import KVCache
from inferx.model.gpu.attention import StepAttention
from inferx.model.gpu.products import Way, library, quantized, skinny, vector, way_of
from inferx.model.layers import RMSNorm
from inferx.model.llama import Layer, LlamaForCausalLM


class GpuLlama:
    """Steps begin with an ordinary kernel, the embedding: the chain of dependent launches, in
    which a kernel starts before its predecessor has ended, begins behind it."""

    def __init__(
        self, model: LlamaForCausalLM, dtype: torch.dtype, layers: list[Layer] | None = None
    ) -> None:
        """layers: all of the model's, unless given."""
        self._model = model
        self._dtype = dtype
        self._layers = layers or model.layers
        self._weight_dtype = self._layers[0].qkv_proj.packed.weight.dtype

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def forward(self, step: StepAttention, kv: list[KVCache]) -> Tensor:
        """Writes K and V; returns the final norm's output: [num_tokens, hidden_size]."""
        step.plan()
        h = self._model.embed_tokens(step.inputs.token_ids)
        way = way_of(len(h), self._weight_dtype)
        if step.prompts is not None or way is Way.LIBRARY:
            return self._by_library(h, step, kv)
        run = self._one_token if way is Way.VECTOR else self._few_tokens
        for layer, cache in zip(self._layers, kv, strict=True):
            h = run(h, layer, step, cache)
        return normed(h, self._model.norm)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[num_rows, hidden_size] -> [num_rows, vocab_size] float32, in `out` if given."""
        weight = self._model.lm_head.packed.weight
        if len(hidden) == 1:
            logits = gemv(hidden, weight, out_dtype=torch.float32)
        elif hidden.is_cuda:
            return torch.mm(hidden, weight.T, out_dtype=torch.float32, out=out)
        else:
            logits = torch.mm(hidden, weight.T).float()
        return logits if out is None else out.copy_(logits)

    def _one_token(self, h: Tensor, layer: Layer, step: StepAttention, kv: KVCache) -> Tensor:
        norm = layer.input_norm
        qkv = vector(h, layer.qkv_proj.packed, norm_weight=norm.weight, eps=norm.eps)
        attended = step.decode(qkv, kv, layer.sliding_window, *qk_norm_of(layer))
        h = vector(attended, layer.o_proj.packed, residual=h)
        norm = layer.post_attention_norm
        gated = vector(
            h, layer.gate_up_proj.packed, norm_weight=norm.weight, eps=norm.eps, silu_mul=True
        )
        return vector(gated, layer.down_proj.packed, residual=h)

    def _few_tokens(self, h: Tensor, layer: Layer, step: StepAttention, kv: KVCache) -> Tensor:
        dtype = self._dtype
        qkv_proj, o_proj = layer.qkv_proj.packed, layer.o_proj.packed
        gate_up_proj, down_proj = layer.gate_up_proj.packed, layer.down_proj.packed
        qkv = skinny(layer_input(h, layer.input_norm, qkv_proj), qkv_proj, dtype=dtype)
        attended = step.decode(qkv, kv, layer.sliding_window, *qk_norm_of(layer))
        h = skinny(quantized(attended, o_proj), o_proj, dtype=dtype, residual=h)
        x = layer_input(h, layer.post_attention_norm, gate_up_proj)
        gated = skinny(x, gate_up_proj, dtype=dtype, silu_mul=True)
        return skinny(quantized(gated, down_proj), down_proj, dtype=dtype, residual=h)

    def _by_library(self, residual: Tensor, step: StepAttention, kv: list[KVCache]) -> Tensor:
        dtype = self._dtype
        layers = self._layers
        x = layer_input(residual, layers[0].input_norm, layers[0].qkv_proj.packed)
        for layer, following, cache in zip(layers, [*layers[1:], None], kv, strict=True):
            o_proj, down_proj = layer.o_proj.packed, layer.down_proj.packed
            gate_up_proj = layer.gate_up_proj.packed
            qkv, late = library(x, layer.qkv_proj.packed, dtype=dtype)
            attended = step.mixed(qkv, late, cache, layer.sliding_window, *qk_norm_of(layer))
            y, late = library(quantized(attended, o_proj), o_proj, dtype=dtype)
            norm = layer.post_attention_norm
            x = layer_input(y, norm, gate_up_proj, residual=residual, late=late)
            gate_up, late = library(x, gate_up_proj, dtype=dtype)
            gated = silu_mul_rows(gate_up, late=late, quantize=_is_fp8(down_proj))
            y, late = library(gated, down_proj, dtype=dtype)
            if following is not None:
                norm, reader = following.input_norm, following.qkv_proj.packed
                x = layer_input(y, norm, reader, residual=residual, late=late)
        return normed(y, self._model.norm, residual=residual, late=late)


def layer_input(
    h: Tensor,
    norm: RMSNorm | None,
    reader: PackedLinear,
    *,
    residual: Tensor | None = None,
    late: LateScales | None = None,
) -> Tensor | Quantized:
    """What `reader` multiplies: normed, if a norm is given, after the residual is added; e4m3 where
    its weight is."""
    if norm is None:
        return quantized(h, reader)
    return norm_rows(
        h, norm.weight, norm.eps, residual=residual, late=late, quantize=_is_fp8(reader)
    )


def _is_fp8(weight: PackedLinear) -> bool:
    return weight.weight_scale is not None


def normed(
    h: Tensor,
    norm: RMSNorm,
    *,
    residual: Tensor | None = None,
    late: LateScales | None = None,
) -> Tensor:
    x = norm_rows(h, norm.weight, norm.eps, residual=residual, late=late)
    assert isinstance(x, Tensor)
    return x


def qk_norm_of(layer: Layer) -> tuple[Tensor | None, float]:
    return (None, 0.0) if layer.qk_norm is None else (layer.qk_norm.weight, layer.qk_norm.eps)

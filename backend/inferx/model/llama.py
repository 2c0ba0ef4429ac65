"""The fused Llama-like models: Llama, Mistral, Qwen2, Qwen3, SmolLM2.

They differ by what their ModelConfig says: biases, QK-norm, sliding windows, rotary scaling, tied
embeddings. Names of weights are Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.model.activations import PROJECTIONS, Activations, Projection, Site
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.config import GATE_UP, QKV, ModelConfig
from inferx.model.layers import Embedding, Linear, RMSNorm
from inferx.model.rope import rope_frequencies


class Step(NamedTuple):
    """What all layers of a step share."""

    rotation: ops.Rotation
    slot_mapping: Tensor
    attention: dict[int | None, ops.AttentionPlan]  # by sliding window
    activations: Activations | None = None

    def input(self, layer: int, projection: Projection, x: Tensor) -> Tensor:
        """What a product multiplies, where x is what it would have multiplied."""
        if self.activations is None:
            return x
        return self.activations(Site(layer, projection), x)


class LlamaForCausalLM:
    """A CausalLM. Call `load_weights` once, with every weight."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        inv_freq, self._rope_scaling = rope_frequencies(config)
        self._inv_freq = inv_freq.to(device)
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, dtype=dtype, device=device
        )
        self.layers = [Layer(config, i, dtype, device) for i in range(config.num_layers)]
        self.norm = _norm(config, dtype, device)
        self.lm_head = Linear(bias=False, dtype=dtype, device=device)

    def forward(
        self, batch: ForwardBatch, kv: list[KVCache], activations: Activations | None = None
    ) -> Tensor:
        """Writes the step's K and V; returns the final norm's output [num_tokens, hidden].

        `activations` sees, and may replace, the input of every product but the head's.
        """
        step = self.step(batch, kv[0], activations)
        residual = self.embed_tokens(batch.token_ids)
        x = self.layers[0].input_norm(residual)
        next_norms = [*(layer.input_norm for layer in self.layers[1:]), self.norm]
        for layer, cache, next_norm in zip(self.layers, kv, next_norms, strict=True):
            x = layer.attention(x, step, cache)
            x = layer.post_attention_norm.add(x, residual)
            x = layer.mlp(x, step)
            x = next_norm.add(x, residual)
        return x

    def step(
        self, batch: ForwardBatch, kv: KVCache, activations: Activations | None = None
    ) -> Step:
        """What the layers' methods take; kv: any layer's pages, for their shape."""
        windows = {layer.sliding_window for layer in self.layers}
        plans = {window: self._plan(batch, kv, window) for window in windows}
        return Step(self.rotation(batch.positions), batch.slot_mapping, plans, activations)

    def rotation(self, positions: Tensor) -> ops.Rotation:
        """positions: [num_tokens] int64."""
        return ops.plan_rope(positions, self._inv_freq, self._rope_scaling)

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_samples, hidden] -> [num_samples, vocab] float32."""
        return self.lm_head(hidden).float()

    def _plan(self, batch: ForwardBatch, kv: KVCache, window: int | None) -> ops.AttentionPlan:
        return ops.plan_attention(
            batch.block_table,
            batch.seq_lens,
            batch.query_start,
            block_size=kv.k.shape[1],
            num_heads=self.config.num_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            sliding_window=window,
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Takes every weight once, in any order, by its Hugging Face name.

        An lm_head is expected unless embeddings are tied.
        """
        for name, tensor in weights:
            module, _, kind = name.removeprefix("model.").rpartition(".")
            if module == "embed_tokens":
                self.embed_tokens.weight.copy_(tensor)
                if self.config.tie_word_embeddings:
                    self.lm_head.load("weight", self.embed_tokens.weight)
            elif module == "lm_head":
                self.lm_head.load(kind, tensor)
            elif module == "norm":
                self.norm.weight.copy_(tensor)
            else:
                _, index, module = module.split(".", 2)
                self.layers[int(index)].load(module, kind, tensor)


class Layer:
    def __init__(
        self, config: ModelConfig, index: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._index = index
        self._heads, self._kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        self._scale = config.head_dim**-0.5
        slides = config.layer_sliding is None or config.layer_sliding[index]
        self.sliding_window = config.sliding_window if slides else None

        def linear(*parts: str, bias: bool) -> Linear:
            module = f"model.layers.{index}.{parts[0]}"
            fp8 = config.fp8 if config.fp8 and config.fp8.holds(module) else None
            return Linear(len(parts), bias=bias, dtype=dtype, device=device, fp8=fp8)

        self.input_norm = _norm(config, dtype, device)
        self.qkv_proj = linear(*QKV, bias=config.attention_bias)
        self.qk_norm = (
            RMSNorm(
                self._heads + self._kv_heads,
                self._head_dim,
                eps=config.rms_norm_eps,
                dtype=dtype,
                device=device,
            )
            if config.qk_norm
            else None
        )
        self.o_proj = linear("self_attn.o_proj", bias=config.attention_out_bias)
        self.post_attention_norm = _norm(config, dtype, device)
        self.gate_up_proj = linear(*GATE_UP, bias=config.mlp_bias)
        self.down_proj = linear("mlp.down_proj", bias=config.mlp_bias)

    def attention(self, x: Tensor, step: Step, kv: KVCache) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        x = step.input(self._index, "qkv", x)
        qkv = self.qkv_proj(x).view(len(x), -1, self._head_dim)
        qk, v = qkv.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q, k = ops.apply_rope(qk, step.rotation).split([self._heads, self._kv_heads], dim=1)
        ops.write_kv(k, v, kv.k, kv.v, step.slot_mapping)
        plan = step.attention[self.sliding_window]
        out = ops.paged_attention(q, kv.k, kv.v, plan, self._scale)
        return self.o_proj(step.input(self._index, "o", out.flatten(1)))

    def mlp(self, x: Tensor, step: Step) -> Tensor:
        """[num_tokens, hidden] -> [num_tokens, hidden]."""
        gated = ops.silu_mul(self.gate_up_proj(step.input(self._index, "gate_up", x)))
        return self.down_proj(step.input(self._index, "down", gated))

    def products(self) -> dict[Projection, Linear]:
        """The layer's products by their projection."""
        return dict(
            zip(
                PROJECTIONS,
                (self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj),
                strict=True,
            )
        )

    def load(self, module: str, kind: str, tensor: Tensor) -> None:
        match module:
            case "input_layernorm":
                self.input_norm.weight.copy_(tensor)
            case "post_attention_layernorm":
                self.post_attention_norm.weight.copy_(tensor)
            case "self_attn.q_proj":
                self.qkv_proj.load(kind, tensor, 0)
            case "self_attn.k_proj":
                self.qkv_proj.load(kind, tensor, 1)
            case "self_attn.v_proj":
                self.qkv_proj.load(kind, tensor, 2)
            case "self_attn.q_norm":
                self._qk_norm_weight[: self._heads] = tensor
            case "self_attn.k_norm":
                self._qk_norm_weight[self._heads :] = tensor
            case "self_attn.o_proj":
                self.o_proj.load(kind, tensor)
            case "mlp.gate_proj":
                self.gate_up_proj.load(kind, tensor, 0)
            case "mlp.up_proj":
                self.gate_up_proj.load(kind, tensor, 1)
            case "mlp.down_proj":
                self.down_proj.load(kind, tensor)
            case _:
                raise KeyError(module)

    @property
    def _qk_norm_weight(self) -> Tensor:
        assert self.qk_norm is not None
        return self.qk_norm.weight


def _norm(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> RMSNorm:
    return RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype, device=device)

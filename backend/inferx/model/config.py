"""ModelConfig: a decoder-only transformer's shape, the same whether a Hugging Face folder or a
GGUF file told it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding. `scaling` holds Hugging Face's `rope_scaling` fields."""

    theta: float
    rotary_dim: int  # features of a head that rotate; head_dim unless partial
    scaling: dict[str, Any] = field(default_factory=dict)  # {} or {"rope_type": "llama3", ...}


# Linear layers of a layer that read the same input, and are computed as one
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True)
class Fp8Weights:
    """Which linear layers hold e4m3 weights, and what their checkpoint brings of them.

    Modules have Hugging Face's names, like model.layers.0.mlp.up_proj. Only the layers' linear
    layers are held in e4m3: embedding, head, norms and biases are not.
    """

    stored: bool = False  # in the checkpoint; else quantized while loading
    block: tuple[int, int] | None = None  # rows and columns that share one of its scales
    ignored: tuple[re.Pattern[str], ...] = ()  # modules that it leaves as they were

    def holds(self, module: str) -> bool:
        if not module.startswith("model.layers.") or "norm" in module:
            return False
        return not any(pattern.match(module) for pattern in self.ignored)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in features, lengths in tokens."""

    architecture: str  # Hugging Face's class name: LlamaForCausalLM, Qwen3ForCausalLM, ...
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str  # of the checkpoint: float32 | bfloat16 | float16
    eos_token_ids: tuple[int, ...]
    attention_bias: bool = False  # q, k, v
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None  # tokens that a token attends to, itself included
    layer_sliding: tuple[bool, ...] | None = None  # None: sliding_window holds for every layer
    fp8: Fp8Weights | None = None

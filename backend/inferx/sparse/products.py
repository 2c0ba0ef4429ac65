"""Which of a layer's products the sparse path masks, and how many weights they read."""

from __future__ import annotations

from collections.abc import Collection

from inferx_kernels.triton.sparse_tuning import pays

from inferx.model.activations import PROJECTIONS, Projection
from inferx.model.config import ModelConfig
from inferx.model.llama import LlamaForCausalLM


def num_weights(config: ModelConfig) -> dict[Projection, int]:
    """Of each product of a layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    attended = config.num_heads * config.head_dim
    return {
        "qkv": hidden * (attended + 2 * config.num_kv_heads * config.head_dim),
        "o": attended * hidden,
        "gate_up": 2 * hidden * inner,
        "down": inner * hidden,
    }


def weight_shares(
    config: ModelConfig, projections: Collection[Projection] = PROJECTIONS
) -> dict[Projection, float]:
    """Of the weights of these products of a layer, the share that each of them reads."""
    counts = {name: count for name, count in num_weights(config).items() if name in projections}
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def itemsize(model: LlamaForCausalLM) -> int:
    """Bytes of a weight on a GPU, which has no products in 32 bits."""
    return min(2, model.layers[0].gate_up_proj.packed.weight.dtype.itemsize)


def worthwhile(config: ModelConfig, itemsize: int) -> tuple[Projection, ...]:
    """Those that a GPU computes faster where half of the channels are skipped, with weights of
    `itemsize` bytes; all of them in a model that has none such."""
    counts = num_weights(config)
    return tuple(name for name in PROJECTIONS if pays(counts[name] * itemsize)) or PROJECTIONS

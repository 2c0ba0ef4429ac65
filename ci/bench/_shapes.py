"""Models by their shape alone: a config.json, for engines that make random weights of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama8b": _LLAMA
    | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "bos_token_id": 128000, "eos_token_id": 128001,
    },
    "smollm2": _LLAMA
    | {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
        "vocab_size": 49152, "rope_theta": 100000.0, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "tiny": _LLAMA
    | {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": 49152, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip
PRECISIONS: dict[str, dict[str, str]] = {
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "fp8", "kv_cache_dtype": "fp8"},
}
# The limits that vLLM gets beside us
LIMITS: dict[str, Any] = {
    "load_format": "dummy",
    "max_model_len": 4096,
    "max_num_seqs": 256,
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.9,
}


def write_shape(folder: Path, shape: str, **overrides: object) -> Path:
    """Makes the folder of a model of this shape, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[shape] | overrides))
    return folder


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE of a command line, the value as JSON or, failing that, a string."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value

"""Tiny models with random weights, as the folders and files that real ones come in.

Weights are drawn wide enough for logits to differ clearly, norms and biases included, so that a
tensor that is dropped, swapped or misread shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VOCAB_SIZE = 320
EOS_ID = 257
_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]  # ids 256, 257, 258
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": EOS_ID,
    "pad_token_id": 256,
}
FUSED: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16},
    "llama3": {
        "model_type": "llama",
        "max_position_embeddings": 16384,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "smollm2": {
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 72,
        "head_dim": 8,
        "tie_word_embeddings": True,
    },
    "mistral": {"head_dim": 24, "sliding_window": None},
    "mistral-sliding": {"model_type": "mistral", "head_dim": 16, "sliding_window": 8},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-sliding": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen3": {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
}
GENERAL: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "opt": {"num_key_value_heads": None, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi3": {"pad_token_id": 256},
    "olmo2": {},
    "gpt_neox": {"num_key_value_heads": None, "rotary_pct": 0.25},
    "starcoder2": {"sliding_window": 8},
    "granite": {"logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2},
    "cohere": {"logit_scale": 0.25},
    "glm": {"head_dim": 16},
    "gpt2": {"num_key_value_heads": None, "intermediate_size": None},
    "smollm3": {},
}


def make_tiny_model(
    folder: Path, family: str = "llama", *, seed: int = 0, dtype: str = "float32", **overrides: Any
) -> PreTrainedModel:
    """Writes a Hugging Face folder of a family of FUSED or GENERAL; returns the model in it."""
    torch.manual_seed(seed)
    config = tiny_config(family, **overrides)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + noise * 0.2 if is_scale else noise * 0.15)
    model = model.to(getattr(torch, dtype)).eval()
    model.generation_config = GenerationConfig(bos_token_id=256, eos_token_id=[EOS_ID, 256])
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return model


def tiny_config(family: str, **overrides: Any) -> PretrainedConfig:
    """A family of FUSED or GENERAL, or another model type of transformers. None drops a setting."""
    given = {"model_type": family} | _COMMON | (FUSED | GENERAL).get(family, {}) | overrides
    settings = {name: value for name, value in given.items() if value is not None}
    if settings["model_type"] == "mistral":
        settings.setdefault("sliding_window", None)
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def write_tiny_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: a token a byte, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}'
    )


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(
    path: Path, model: PreTrainedModel, kind: GGMLQuantizationType = GGMLQuantizationType.F32
) -> None:
    """Writes a fused family's model as llama.cpp's converter does: Mistral is a Llama, vectors
    stay float32, a Llama's q and k rows are interleaved."""
    config = model.config
    arch = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
        plain = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / stretched).numpy())
    _add_tokenizer(writer)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        if stem.startswith("model.layers."):
            layer, _, stem = stem.removeprefix("model.layers.").partition(".")
            stem = _GGUF_NAMES[stem]
            name = f"blk.{layer}.{stem}.{suffix}"
        else:
            name = f"{_GGUF_NAMES[stem]}.{suffix}"
        values = tensor.float().numpy()
        if arch == "llama" and stem in heads:
            values = interleave(values, heads[stem])
        if tensor.ndim == 1:
            writer.add_tensor(name, values)
        else:
            data = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """The tokenizer of `write_tiny_tokenizer`, filled up to the vocabulary with unused tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    unused = [f"[UNUSED_{i}]" for i in range(len(alphabet) + len(_SPECIAL_TOKENS), VOCAB_SIZE)]
    normal, control, never = (
        gguf.TokenType.NORMAL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.UNUSED,
    )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(alphabet + _SPECIAL_TOKENS + unused)
    writer.add_token_types(
        [normal] * len(alphabet) + [control] * len(_SPECIAL_TOKENS) + [never] * len(unused)
    )
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(EOS_ID)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def interleave(values: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of a Llama's q and k rows: a head's halves, row by row in turn."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))

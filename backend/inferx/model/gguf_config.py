"""ModelConfig out of a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

import torch

from inferx.gguf_file import GGUFError, GGUFFile, read_gguf
from inferx.model.config import ModelConfig, RopeConfig
from inferx.model.hf_config import MAX_LAYERS
from inferx.source import ModelSource, load_error

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Llama 3.1's converter stores the frequencies' divisors as a tensor, made with these numbers
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def open_gguf(source: ModelSource) -> GGUFFile:
    """Reads the header. Raises ModelLoadError."""
    try:
        return read_gguf(source.path)
    except GGUFError as error:
        raise load_error(source, str(error)) from None
    except OSError as error:
        raise load_error(source, f"its file cannot be read: {error.strerror}") from None


def gguf_config(source: ModelSource, file: GGUFFile) -> ModelConfig:
    """Raises ModelLoadError, naming what is missing or unsupported."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        raise load_error(
            source,
            f"GGUF files of the architecture {file.architecture!r} are not supported: "
            f"{', '.join(ARCHITECTURES)} are",
        )
    if file.get("expert_count"):
        raise load_error(source, "mixtures of experts are not supported in GGUF files")
    if file.metadata.get("split.count", 1) not in (0, 1):  # 0: was merged
        raise load_error(source, "split GGUF files are not read: merge them with llama-gguf-split")
    entry = _Entries(source, file)
    hidden_size = entry.size("embedding_length")
    num_heads = entry.size("attention.head_count")
    num_kv_heads = entry.size("attention.head_count_kv", num_heads)
    head_dim = entry.size("attention.key_length", hidden_size // num_heads)
    if head_dim % 2 or entry.size("attention.value_length", head_dim) != head_dim:
        raise load_error(source, "keys and values of different or odd sizes are not supported")
    if num_heads % num_kv_heads:
        raise load_error(
            source,
            f"{num_heads} attention heads cannot share {num_kv_heads} key-value heads evenly",
        )
    if entry.size("rope.dimension_count", head_dim) != head_dim:
        raise load_error(source, "partial rotary embeddings are not supported in GGUF files")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise load_error(source, "its file has no tensor 'token_embd.weight'")
    max_positions = entry.size("context_length")
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=entry.size("feed_forward_length"),
        num_layers=entry.size("block_count", most=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=entry.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(entry, file, head_dim, max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings="output.weight" not in file.tensors,
        dtype=_dtype(embedding.type.name),
        eos_token_ids=_eos_token_ids(file, embedding.shape[0]),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )


class _Entries:
    """Typed access to the architecture's metadata."""

    def __init__(self, source: ModelSource, file: GGUFFile) -> None:
        self.source = source
        self.file = file

    def size(self, key: str, default: int | None = None, *, most: int = 2**31) -> int:
        value = self.file.get(key, default)
        if type(value) is not int or not 0 < value <= most:
            raise self._wrong(key, value, f"an integer between 1 and {most}")
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0) -> float:
        value = self.file.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not above < value < 1e30:
            raise self._wrong(key, value, f"a number above {above}")
        return float(f"{value:.7g}")  # the file's float32 0.00001 is 9.9999997e-06 as a double

    def _wrong(self, key: str, value: Any, expected: str) -> Exception:
        key = f"{self.file.architecture}.{key}"
        if value is None:
            return load_error(self.source, f"its header lacks the entry {key!r}")
        if isinstance(value, list):
            return load_error(
                self.source, f"a {key!r} that differs between layers is not supported"
            )
        return load_error(self.source, f"its entry {key!r} is {value!r}: expected {expected}")


def _rope(entry: _Entries, file: GGUFFile, head_dim: int, max_positions: int) -> RopeConfig:
    theta = entry.number("rope.freq_base", 10_000.0, above=1)
    kind = file.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        scaling = _llama3_scaling(entry.source, file, theta, head_dim)
    elif kind == "none":
        scaling = {}
    elif kind == "linear":
        scaling = {"rope_type": "linear", "factor": entry.number("rope.scaling.factor")}
    elif kind == "yarn":
        scaling = {
            "rope_type": "yarn",
            "factor": entry.number("rope.scaling.factor"),
            "original_max_position_embeddings": entry.size(
                "rope.scaling.original_context_length", max_positions
            ),
        }
    else:
        raise load_error(entry.source, f"rotary embeddings of the type {kind!r} are not supported")
    return RopeConfig(theta=theta, rotary_dim=head_dim, scaling=scaling)


def _llama3_scaling(
    source: ModelSource, file: GGUFFile, theta: float, head_dim: int
) -> dict[str, Any]:
    """The llama3 parameters that make the divisors in `rope_freqs.weight`."""
    from inferx.model.gguf_weights import read_tensor
    from inferx.model.rope import llama3_frequencies, plain_frequencies

    divisors = read_tensor(source, file, file.tensors["rope_freqs.weight"], torch.float32)
    scaling = {"rope_type": "llama3", "factor": round(float(divisors.max()), 4), **_LLAMA3}
    if divisors.shape == (head_dim // 2,):
        plain = plain_frequencies(theta, head_dim)
        if torch.allclose(plain / divisors, llama3_frequencies(plain, scaling), rtol=1e-3):
            return scaling
    raise load_error(source, "its rotary frequencies ('rope_freqs.weight') are not Llama 3's")


def _dtype(embedding_type: str) -> str:
    """Quantized files are made of bfloat16 models, as a rule."""
    return {"F32": "float32", "F16": "float16"}.get(embedding_type, "bfloat16")


def _eos_token_ids(file: GGUFFile, vocab_size: int) -> tuple[int, ...]:
    ids = (file.metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS)
    return tuple(dict.fromkeys(id for id in ids if type(id) is int and 0 <= id < vocab_size))

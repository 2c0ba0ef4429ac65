"""Writes a Hugging Face folder from a GGUF file: configuration, tokenizer, safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from inferx.errors import ConfigError
from inferx.model.config import ModelConfig
from inferx.model.gguf_config import open_gguf
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.model.registry import load_config
from inferx.model.weights import iter_weights
from inferx.source import ModelSource, load_error
from inferx.text.gguf_tokenizer import read_gguf_tokenizer

_SHARD_BYTES = 2 << 30  # also the most of a model that is in memory at once
_SPECIAL_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}


def convert(
    source: ModelSource,
    out: Path,
    *,
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
) -> None:
    """Writes the folder `out`, which may exist if it is empty. config.json comes last, so that a
    folder that was left half-way is not taken for a model.

    Raises ModelLoadError at what is wrong with the source, ConfigError at what is wrong with out.
    """
    if source.format != "gguf":
        raise load_error(source, "only GGUF files are converted, and it is a Hugging Face folder")
    config = load_config(source)
    tokenizer = read_gguf_tokenizer(source)
    settings = _settings(source, config, dtype)
    _make_folder(out)
    _write_weights(iter_weights(source, config, getattr(torch, dtype)), out)
    tokenizer.write(out)
    ids = {name: settings[name] for name in ("eos_token_id", *_SPECIAL_IDS) if name in settings}
    _write_json(out / "generation_config.json", ids)
    _write_json(out / "config.json", settings)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        is_empty = not any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"the folder {str(out)!r} cannot be made: {error.strerror}") from None
    if not is_empty:
        raise ConfigError(f"the folder {str(out)!r} is not empty: name a new one")


def _settings(source: ModelSource, config: ModelConfig, dtype: str) -> dict[str, Any]:
    """What config.json says. Raises ModelLoadError where it cannot say what the GGUF has."""
    is_qwen2 = config.architecture == "Qwen2ForCausalLM"
    if config.attention_out_bias != (config.attention_bias and not is_qwen2):
        raise load_error(source, "its attention has biases that its configuration cannot express")
    rope = {"rope_type": "default", **config.rope.scaling}
    metadata = open_gguf(source).metadata
    eos = config.eos_token_ids
    settings: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": FUSED_ARCHITECTURES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "sliding_window": config.sliding_window,
        "rope_parameters": {"rope_theta": config.rope.theta, **rope},
        # versions of transformers before 5 would silently take their defaults
        "rope_theta": config.rope.theta,
        "rope_scaling": config.rope.scaling or None,
        "dtype": dtype,
        "torch_dtype": dtype,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos),
    }
    for name, key in _SPECIAL_IDS.items():
        if isinstance(metadata.get(key), int):
            settings[name] = metadata[key]
    return settings


def _write_weights(weights: Iterable[tuple[str, Tensor]], out: Path) -> None:
    """One file, or several and their index; a file's name tells how many there are."""
    shards: list[list[str]] = []
    total = 0
    for shard in _shards(weights):
        path = out / _partial(len(shards))
        save_file(shard, path, {"format": "pt"})
        path.chmod(_mode_of_new_files())  # the library lets its owner alone read it
        shards.append(list(shard))
        total += sum(tensor.nbytes for tensor in shard.values())
    if len(shards) == 1:
        (out / _partial(0)).rename(out / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (out / _partial(number)).rename(out / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(out / "model.safetensors.index.json", index)


def _shards(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights:
        if shard and size + tensor.nbytes > _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _mode_of_new_files() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def _partial(number: int) -> str:
    return f"model-{number + 1:05}.safetensors.partial"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

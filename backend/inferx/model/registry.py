"""Which implementation serves a model, and what of it is known before any weight is read."""

from __future__ import annotations

from inferx.model.config import ModelConfig
from inferx.model.gguf_config import gguf_config, open_gguf
from inferx.model.hf_config import (
    FUSED_ARCHITECTURES,
    architecture_of,
    llama_like_config,
    read_json,
)
from inferx.source import ModelSource, load_error


def load_config(source: ModelSource) -> ModelConfig:
    """The model's shape, without its weights. Raises ModelLoadError, naming what is unsupported."""
    if source.format == "gguf":
        return gguf_config(source, open_gguf(source))
    raw = read_json(source, "config.json")
    architecture = architecture_of(source, raw)
    if architecture not in FUSED_ARCHITECTURES:
        raise load_error(source, f"the architecture {architecture} is not supported")
    return llama_like_config(source, raw)

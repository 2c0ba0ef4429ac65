"""Which implementation serves a model, and what of it is known before any weight is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.config import ModelConfig
from inferx.model.dummy_weights import dummy_weights
from inferx.model.footprint import check_fits
from inferx.model.fp8_weights import fp8_weights
from inferx.model.gguf_config import gguf_config, open_gguf
from inferx.model.hf_config import (
    FUSED_ARCHITECTURES,
    architecture_of,
    llama_like_config,
    read_json,
)
from inferx.model.hf_quantization import fp8_weights_config
from inferx.model.weights import iter_weights
from inferx.source import ModelSource, load_error


class CausalLM(Protocol):
    """A loaded model. Its KV cache is `config.num_layers` pairs of pages, each of
    `config.num_kv_heads` heads of `config.head_dim`."""

    config: ModelConfig

    def forward(self, batch: ForwardBatch, kv: list[KVCache]) -> Tensor:
        """Writes K and V; returns hidden states, final norm applied: [num_tokens, hidden_size]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [num_samples, hidden_size]; returns [num_samples, vocab_size], float32."""
        ...


def load_config(source: ModelSource) -> ModelConfig:
    """The model's shape, without its weights. Raises ModelLoadError, naming what is unsupported."""
    if source.format == "gguf":
        return gguf_config(source, open_gguf(source))
    raw = read_json(source, "config.json")
    if (source.path / "adapter_config.json").exists():
        raise load_error(source, "its folder holds an adapter: merge it into its model first")
    quantization = raw.get("quantization_config")
    fp8 = fp8_weights_config(source, quantization) if quantization else None
    architecture = architecture_of(source, raw)
    if architecture in FUSED_ARCHITECTURES:
        return replace(llama_like_config(source, raw), fp8=fp8)
    if fp8 is not None:
        raise load_error(source, f"{architecture} with fp8 weights is not supported")
    from inferx.model.general import general_config  # imports transformers: seconds

    return general_config(source, raw)


def load_model(
    source: ModelSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    load_format: Literal["auto", "dummy"] = "auto",
) -> CausalLM:
    """Loads the weights onto the device, or makes random ones there ("dummy").

    Raises ModelLoadError where they are damaged, do not match `config`, or exceed the memory.
    """
    if load_format == "dummy" and config.architecture not in FUSED_ARCHITECTURES:
        raise load_error(
            source,
            f"the setting load_format is 'dummy', which {config.architecture} does not have: it "
            f"is for {', '.join(FUSED_ARCHITECTURES)}",
        )
    check_fits(source, config, dtype, device)
    if config.architecture in FUSED_ARCHITECTURES:
        from inferx.model.llama import LlamaForCausalLM

        model = LlamaForCausalLM(config, dtype=dtype, device=device)
        with _one_thread():
            model.load_weights(
                dummy_weights(config, dtype, device)
                if load_format == "dummy"
                else _weights(source, config, dtype)
            )
        return model
    from inferx.model.general import GeneralCausalLM

    raw = read_json(source, "config.json")
    return GeneralCausalLM(source, raw, config, dtype=dtype, device=device)


def _weights(
    source: ModelSource, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    if config.fp8 is not None and config.fp8.stored:
        return fp8_weights(source, config, config.fp8)
    return iter_weights(source, config, dtype)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tensors come one at a time, and mostly wait for their dequantizing: waking torch's threads
    for each costs more than they bring, and several times as much where cores are busy."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)

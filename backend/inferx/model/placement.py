"""Where and in which type a model runs, and how much memory its KV pages get."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from inferx.config import EngineConfig
from inferx.errors import ModelLoadError
from inferx.model.config import Fp8Weights, ModelConfig
from inferx.model.footprint import available_memory
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.source import ModelSource, load_error

_CPU_KV_BYTES = 256 * 2**20  # enough for about 11,000 tokens of a model of 135M parameters
_FP8_CAPABILITY = (8, 9)  # the first GPUs with e4m3 tensor cores and conversions


class KVSize(NamedTuple):
    num_blocks: int
    block_bytes: int  # a page of all layers, K and V
    max_model_len: int


def check_max_model_len(config: EngineConfig, source: ModelSource, model: ModelConfig) -> None:
    """Raises ModelLoadError where the setting goes beyond the model."""
    limit = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise load_error(
            source,
            f"the setting max_model_len is {config.max_model_len} and the model takes at most "
            f"{limit} tokens",
        )


def pick_device(config: EngineConfig) -> torch.device:
    """Raises ModelLoadError where the setting asks for a GPU that torch does not see."""
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise ModelLoadError(
            "the setting device is 'cuda' and torch sees no GPU: use 'cpu' or 'auto', or install "
            "torch with CUDA and check the driver"
        )
    return torch.device("cuda" if has_gpu and config.device != "cpu" else "cpu")


def pick_weights(
    config: EngineConfig, source: ModelSource, model: ModelConfig, device: torch.device
) -> ModelConfig:
    """The model, with fp8 weights where the setting dtype asks for them; a checkpoint that has
    some keeps its own choice of layers.

    Raises ModelLoadError where the model or the device does not take them.
    """
    if config.dtype == "fp8" and model.fp8 is None:
        if model.architecture not in FUSED_ARCHITECTURES:
            raise load_error(
                source,
                f"the setting dtype is 'fp8', which {model.architecture} does not run in: use "
                "'bfloat16' or 'auto'",
            )
        _check_fp8_device("the setting dtype is 'fp8'", "use 'auto'", device)
        return replace(model, fp8=Fp8Weights())
    if model.fp8 is not None:
        what = f"the weights of model {source.label!r} are fp8"
        _check_fp8_device(what, "use the model in bfloat16", device)
    return model


def pick_dtype(config: EngineConfig, model: ModelConfig, device: torch.device) -> torch.dtype:
    """What the model computes in: the setting's type, or the one that the device runs best.

    On a CPU that is bfloat16 where its instructions multiply bfloat16 (AVX512-BF16 or AMX: then
    decoding measured 1.7 to 2.3 times as fast as float32), else float32.
    """
    if config.dtype not in ("auto", "fp8"):
        return getattr(torch, config.dtype)
    if device.type == "cpu":
        return torch.bfloat16 if _multiplies_bfloat16() else torch.float32
    if config.dtype == "auto" and model.dtype == "float16":
        return torch.float16
    return torch.bfloat16


def pick_kv_dtype(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Of the KV pages; `dtype` is what the model computes in. Raises ModelLoadError."""
    if config.kv_cache_dtype == "auto":
        return dtype
    _check_fp8_device("the setting kv_cache_dtype is 'fp8'", "use 'auto'", device)
    return torch.float8_e4m3fn


def _check_fp8_device(what: str, instead: str, device: torch.device) -> None:
    if device.type == "cpu":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < _FP8_CAPABILITY:
        raise ModelLoadError(
            f"{what}, and the GPU has the compute capability {major}.{minor}, where fp8 needs 8.9 "
            f"or newer: {instead}"
        )


def _multiplies_bfloat16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def size_kv_cache(
    config: EngineConfig,
    source: ModelSource,
    model: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    weight_bytes: int,
    activation_bytes: int = 0,
) -> KVSize:
    """The pages of `dtype` that there is room for, once the weights are loaded, and the longest
    text they hold.

    activation_bytes: what steps take beside weights and pages.
    Raises ModelLoadError where that is less than one page, or than the max_model_len asked for.
    """
    a_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
    block_bytes = a_token * config.page_size(device.type)
    free = available_memory(device) - activation_bytes
    wanted = _kv_cache_bytes(config, device, free, weight_bytes, block_bytes)
    if wanted > free:
        raise load_error(
            source,
            f"its KV cache is set to {wanted / 1e9:.2f} GB, and {free / 1e9:.2f} GB of memory are "
            f"free on the device {device.type!r}: lower num_gpu_blocks_override or "
            "kv_cache_memory_bytes",
        )
    num_blocks = wanted // block_bytes
    capacity = num_blocks * config.page_size(device.type)
    max_model_len = config.max_model_len or model.max_position_embeddings
    needed = config.max_model_len or config.page_size(device.type)
    if capacity < needed:
        raise load_error(
            source,
            f"there is room for the KV cache of {capacity} tokens, and one request of {needed} "
            "tokens needs more: lower max_model_len, or raise kv_cache_memory_bytes or "
            "num_gpu_blocks_override",
        )
    return KVSize(num_blocks, block_bytes, min(max_model_len, capacity))


def _kv_cache_bytes(
    config: EngineConfig, device: torch.device, free: int, weight_bytes: int, block_bytes: int
) -> int:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override * block_bytes
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    if device.type == "cpu":
        longest = -(-(config.max_model_len or 0) // config.page_size(device.type)) * block_bytes
        return min(free // 2, max(_CPU_KV_BYTES, weight_bytes // 2, longest))
    total = torch.cuda.get_device_properties(device).total_memory
    return max(0, int(free - (1 - config.gpu_memory_utilization) * total))

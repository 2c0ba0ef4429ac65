"""Where and in which type a model runs, and how much memory its KV pages get."""

from __future__ import annotations

from typing import NamedTuple

import torch

from inferx.config import EngineConfig
from inferx.errors import ModelLoadError
from inferx.model.config import ModelConfig
from inferx.model.footprint import available_memory
from inferx.source import ModelSource, load_error

_CPU_KV_BYTES = 256 * 2**20  # enough for about 11,000 tokens of a model of 135M parameters


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


def pick_dtype(config: EngineConfig, model: ModelConfig, device: torch.device) -> torch.dtype:
    """The setting's type, or for "auto" the one in which the device runs the model best.

    On a CPU that is bfloat16 where its instructions multiply bfloat16 (AVX512-BF16 or AMX: then
    decoding measured 1.7 to 2.3 times as fast as float32), else float32. Raises ModelLoadError.
    """
    if config.dtype == "fp8":
        raise ModelLoadError(
            f"the setting dtype is 'fp8', which needs a GPU with FP8 support, and the model runs "
            f"on the device {device.type!r}: use 'bfloat16', 'float32' or 'auto'"
        )
    if config.kv_cache_dtype == "fp8":
        raise ModelLoadError(
            f"the setting kv_cache_dtype is 'fp8', which needs a GPU with FP8 support, and the "
            f"model runs on the device {device.type!r}: use 'auto'"
        )
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    if device.type == "cpu":
        return torch.bfloat16 if _multiplies_bfloat16() else torch.float32
    return torch.float16 if model.dtype == "float16" else torch.bfloat16


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
    """The pages there is room for, once the weights are loaded, and the longest text they hold.

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

"""How much memory the weights take, and how much there is, before anything is loaded."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from inferx.model.config import ModelConfig
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.model.weights import llama_like_shapes, safetensors_shapes
from inferx.source import ModelSource, load_error

_SCALE_BYTES = 4  # an output feature of an fp8 weight
_CGROUP = Path("/sys/fs/cgroup")


def weight_bytes(source: ModelSource, config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the loaded weights, in `dtype` where they are not fp8. Reads headers at most.

    Raises ModelLoadError.
    """
    if config.architecture in FUSED_ARCHITECTURES:
        shapes = llama_like_shapes(config)
    else:
        shapes = safetensors_shapes(source)
    return sum(_tensor_bytes(config, dtype, name, shape) for name, shape in shapes.items())


def _tensor_bytes(
    config: ModelConfig, dtype: torch.dtype, name: str, shape: tuple[int, ...]
) -> int:
    module, _, kind = name.rpartition(".")
    if config.fp8 is not None and kind == "weight" and config.fp8.holds(module):
        return math.prod(shape) + _SCALE_BYTES * shape[0]
    return math.prod(shape) * dtype.itemsize


def weight_dtype(config: ModelConfig, dtype: torch.dtype) -> str:
    """What the layers' weights are held in: "fp8", or the dtype's name."""
    return dtype_name(dtype if config.fp8 is None else torch.float8_e4m3fn)


def dtype_name(dtype: torch.dtype) -> str:
    """As the settings call it."""
    return "fp8" if dtype is torch.float8_e4m3fn else str(dtype).removeprefix("torch.")


def available_memory(device: torch.device) -> int:
    """Bytes that this process can still take on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return int(min(free, _free_in_cgroup()))


def check_fits(
    source: ModelSource, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> None:
    """Raises ModelLoadError where the weights alone are larger than the memory that is free."""
    needed, free = weight_bytes(source, config, dtype), available_memory(device)
    if needed > free:
        raise load_error(
            source,
            f"its weights take {_size(needed)} in {weight_dtype(config, dtype)}, "
            f"and {_size(free)} of memory are free on the device {device.type!r}",
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.2f} MB"


def _free_in_cgroup() -> float:
    """What a container's limit leaves (cgroup v2); file pages that can be dropped count as free."""
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return limit - used + int(stat["inactive_file"])
    except (OSError, ValueError, KeyError):  # no limit ("max"), or another kind of host
        return math.inf

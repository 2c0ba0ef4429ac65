"""Which runner serves a model: on a GPU the one of our kernels, wherever they know the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inferx.config import EngineConfig
from inferx.model.config import ModelConfig
from inferx.model.hf_config import FUSED_ARCHITECTURES
from inferx.model.loading import LoadedModel
from inferx.observe.stages import Stages
from inferx.source import ModelSource, load_error

if TYPE_CHECKING:
    from inferx.model.gpu.runner import GpuRunner
    from inferx.model.runner import ModelRunner

_LARGEST_HEAD = 256
_FP8_GRANULE = 16


def load_runner(
    config: EngineConfig, source: ModelSource, stages: Stages | None = None
) -> GpuRunner | ModelRunner:
    """`stages` gets what loading consists of. Raises ModelLoadError."""
    stages = Stages() if stages is None else stages
    loaded = LoadedModel.load(config, source, stages)
    if loaded.device.type != "cuda" or not _is_for_kernels(config, loaded):
        from inferx.model.runner import ModelRunner

        return ModelRunner(config, loaded, stages)
    reason = _unsupported_shape(loaded.config)
    if reason is not None:
        raise load_error(source, f"{reason}: set device to 'cpu', or take another dtype")
    from inferx.model.gpu.runner import GpuRunner  # imports Triton

    try:
        return GpuRunner(config, loaded, stages)
    except torch.OutOfMemoryError:
        raise load_error(
            source,
            "the GPU's memory does not suffice for its largest step: lower "
            "max_num_batched_tokens, max_num_seqs or gpu_memory_utilization",
        ) from None


def _is_for_kernels(config: EngineConfig, loaded: LoadedModel) -> bool:
    """Others run on the operations' PyTorch references, which are slower."""
    return (
        loaded.config.architecture in FUSED_ARCHITECTURES
        and loaded.dtype in (torch.bfloat16, torch.float16)
        and not config.batch_invariant
    )


def _unsupported_shape(config: ModelConfig) -> str | None:
    if config.head_dim % 8 or config.head_dim > _LARGEST_HEAD:
        return (
            f"its head size is {config.head_dim}, and the GPU's kernels take multiples of 8 up to "
            f"{_LARGEST_HEAD}"
        )
    if config.fp8 is not None:
        widths = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
        if any(width % _FP8_GRANULE for width in widths):
            return (
                f"its layers have {', '.join(map(str, widths))} features, and fp8 products take "
                f"multiples of {_FP8_GRANULE}"
            )
    return None

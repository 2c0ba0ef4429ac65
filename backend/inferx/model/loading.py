"""A model on its device, with what its runner has to know."""

from __future__ import annotations

from typing import NamedTuple

import torch

from inferx.config import EngineConfig
from inferx.engine.messages import EngineInfo
from inferx.model.batch import KVCache
from inferx.model.config import ModelConfig
from inferx.model.footprint import dtype_name, weight_bytes, weight_dtype
from inferx.model.placement import (
    KVSize,
    check_max_model_len,
    pick_device,
    pick_dtype,
    pick_kv_dtype,
    pick_weights,
)
from inferx.model.registry import CausalLM, load_config, load_model
from inferx.observe.stages import Stages
from inferx.source import ModelSource
from inferx.sparse.calibration import Calibration
from inferx.sparse.finding import find_calibrations


class LoadedModel(NamedTuple):
    source: ModelSource
    config: ModelConfig
    model: CausalLM
    device: torch.device
    dtype: torch.dtype  # of activations
    kv_dtype: torch.dtype  # of pages
    weight_bytes: int
    calibrations: list[Calibration]  # of its sparse path, by rising target

    @classmethod
    def load(cls, config: EngineConfig, source: ModelSource, stage: Stages) -> LoadedModel:
        """Raises ModelLoadError."""
        with stage("config"):
            model_config = load_config(source)
            check_max_model_len(config, source, model_config)
            device = pick_device(config)
            model_config = pick_weights(config, source, model_config, device)
            dtype = pick_dtype(config, model_config, device)
            kv_dtype = pick_kv_dtype(config, dtype, device)
            calibrations = find_calibrations(config, source, model_config)
        with stage("weights"):
            model = load_model(
                source,
                model_config,
                dtype=dtype,
                device=device,
                load_format=config.load_format,
            )
        num_bytes = weight_bytes(source, model_config, dtype)
        return cls(source, model_config, model, device, dtype, kv_dtype, num_bytes, calibrations)

    def pages(self, num_blocks: int, block_size: int) -> KVCache:
        """A layer's. Uninitialized: on a CPU pages take no memory until they are first used."""
        shape = (num_blocks, block_size, self.config.num_kv_heads, self.config.head_dim)
        k, v = (torch.empty(shape, dtype=self.kv_dtype, device=self.device) for _ in range(2))
        return KVCache(k, v)

    def info(self, config: EngineConfig, size: KVSize, stages: Stages) -> EngineInfo:
        return EngineInfo(
            max_model_len=size.max_model_len,
            vocab_size=self.config.vocab_size,
            eos_token_ids=list(self.config.eos_token_ids),
            block_size=config.page_size(self.device.type),
            num_blocks=size.num_blocks,
            device=self.device.type,
            dtype=dtype_name(self.dtype),
            weight_dtype=weight_dtype(self.config, self.dtype),
            kv_cache_dtype=dtype_name(self.kv_dtype),
            weight_bytes=self.weight_bytes,
            kv_cache_bytes=size.num_blocks * size.block_bytes,
            load_seconds=stages.seconds,
        )

"""What a step may have at most."""

from __future__ import annotations

from typing import NamedTuple

from inferx.config import EngineConfig
from inferx.model.loading import LoadedModel


class Limits(NamedTuple):
    max_num_seqs: int
    budget: int  # tokens of a step
    max_model_len: int
    block_size: int  # tokens of a page

    @classmethod
    def of(cls, config: EngineConfig, loaded: LoadedModel) -> Limits:
        """By the settings and the model; how many pages there are is not known yet."""
        device = loaded.device.type
        return cls(
            config.max_num_seqs,
            config.step_budget(device),
            config.max_model_len or loaded.config.max_position_embeddings,
            config.page_size(device),
        )

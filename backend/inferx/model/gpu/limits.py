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

    @property
    def most_copied(self) -> int:
        """Keys of prompts that a step copies from e4m3 pages. Rows that share a long prefix may
        have any number of keys together, and are attended to in the pages themselves."""
        return max(self.max_model_len, 8 * self.budget)

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

"""Slots: what the device keeps of each request, in a row of its own for life."""

from __future__ import annotations

import numpy as np
import torch
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.inputs import SlotState

from inferx.engine.plan import Plan
from inferx.model.upload import upload


class Slots:
    """Takes a plan's differences; new tokens come from the sampler and never leave the device."""

    def __init__(
        self, num_slots: int, *, max_model_len: int, block_size: int, rotation: Rotation
    ) -> None:
        """rotation: of all positions, [max_model_len, 1, rotary_dim]."""
        self._device = rotation.cos.device
        max_blocks = -(-max_model_len // block_size)
        self.state = SlotState(
            torch.zeros(num_slots, max_model_len, dtype=torch.int32, device=self._device),
            torch.zeros(num_slots, max_blocks, dtype=torch.int32, device=self._device),
            rotation,
        )

    def apply(self, plan: Plan) -> None:
        if plan.new_rows:
            counts = [len(row.token_ids) for row in plan.new_rows]
            flat = np.concatenate([np.array(row.token_ids, np.int32) for row in plan.new_rows])
            tokens = upload(flat, self._device).split(counts)
            for row, row_tokens in zip(plan.new_rows, tokens, strict=True):
                self.state.token_pool[row.slot, : len(row_tokens)] = row_tokens
        if plan.block_updates:
            updates = [
                (slot, first + i, page)
                for slot, first, pages in plan.block_updates
                for i, page in enumerate(pages)
            ]
            slots, columns, pages = upload(np.array(updates, np.int64).T.copy(), self._device)
            self.state.block_table[slots, columns] = pages.int()

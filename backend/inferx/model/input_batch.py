"""InputBatch: what the runner keeps of each request, by slot, and a step's inputs made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.engine.plan import NewRow, Plan
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.upload import upload

Array = np.ndarray


class SamplingRows(NamedTuple):
    """The rows that sample, in the plan's order: [num_samples] each, int64, on the host."""

    slots: Array
    positions: Array  # of the token to sample, in its sequence

    @classmethod
    def of(cls, plan: Plan) -> SamplingRows:
        samples = np.array(plan.samples, dtype=bool)
        ends = np.array(plan.starts) + np.array(plan.num_tokens)
        return cls(np.array(plan.slots)[samples], ends[samples])


class InputBatch:
    """A request keeps its row for life; only differences arrive, and new tokens never leave.

    `token_pool`: [num_slots, max_model_len] int32, prompt and output. A step's tokens are stored
    there as they are sampled and gathered by the next one, before the host has read them.
    """

    def __init__(
        self, num_slots: int, *, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.token_pool = torch.zeros(num_slots, max_model_len, dtype=torch.int32, device=device)
        self._block_table = torch.zeros(num_slots, max_blocks, dtype=torch.int32, device=device)
        self._block_size = block_size
        self._device = device

    def add(self, row: NewRow) -> None:
        tokens = upload(np.array(row.token_ids, np.int32), self._device)
        self.token_pool[row.slot, : len(tokens)] = tokens

    def update_blocks(self, updates: Sequence[tuple[int, int, list[int]]]) -> None:
        """Takes a plan's `block_updates`."""
        if not updates:
            return
        slots = [slot for slot, _, pages in updates for _ in pages]
        columns = [first + i for _, first, pages in updates for i in range(len(pages))]
        pages = [page for _, _, pages in updates for page in pages]
        self._block_table[self._upload(slots), self._upload(columns)] = self._upload(pages).int()

    def forward_batch(self, plan: Plan) -> ForwardBatch:
        """The inputs of the plan's tokens; nothing here loops over rows or tokens."""
        starts, counts = np.array(plan.starts), np.array(plan.num_tokens)
        query_start = np.concatenate(([0], counts.cumsum()))
        num_tokens, seq_lens = int(query_start[-1]), starts + counts
        max_seq_len = int(seq_lens.max())

        slots = self._upload(plan.slots)
        row_of_token = self._upload(np.repeat(np.arange(len(counts)), counts))
        offsets = self._upload(starts - query_start[:-1])
        positions = offsets[row_of_token] + torch.arange(num_tokens, device=self._device)
        slot_of_token = slots[row_of_token]
        pages = self._block_table[slot_of_token, positions // self._block_size].long()
        num_columns = -(-max_seq_len // self._block_size)
        return ForwardBatch(
            token_ids=self.token_pool[slot_of_token, positions].long(),
            positions=positions,
            slot_mapping=pages * self._block_size + positions % self._block_size,
            query_start=self._upload(query_start).int(),
            seq_lens=self._upload(seq_lens).int(),
            block_table=self._block_table[slots, :num_columns],
            logits_indices=self._upload((query_start[1:] - 1)[np.array(plan.samples, dtype=bool)]),
            num_decodes=plan.num_decodes,
            max_query_len=int(counts.max()),
            max_seq_len=max_seq_len,
        )

    def store(self, rows: SamplingRows, token_ids: Tensor) -> None:
        """Puts the sampled token_ids: [num_samples] in their places."""
        places = self._upload(rows.slots), self._upload(rows.positions)
        self.token_pool[places] = token_ids.int()

    def _upload(self, values: Sequence[int] | Array) -> Tensor:
        return upload(np.asarray(values, np.int64), self._device)


def copy_pages(kv: Sequence[KVCache], copies: Sequence[tuple[int, int]]) -> None:
    """A plan's `page_copies`, in every layer."""
    if copies:
        sources, targets = upload(np.array(copies, np.int64).T.copy(), kv[0].k.device)
        ops.copy_pages((pages for cache in kv for pages in cache), sources, targets)

"""Drives a model over KV pages by hand: the logits of every token, whatever the batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.registry import CausalLM
from torch import Tensor


class PagedRun:
    """Sequences by name, each with every third page or so of one pool, in scattered order."""

    def __init__(self, model: CausalLM, *, num_blocks: int = 48, block_size: int = 16) -> None:
        config = model.config
        self.model = model
        self.block_size = block_size
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        # NaN: what is read before it was written shows
        self.kv = [
            KVCache(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
            for _ in range(config.num_layers)
        ]
        self.free = list(range(num_blocks))[::-3] + [
            i for i in range(num_blocks) if i not in range(num_blocks)[::-3]
        ]
        self.pages: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, work: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Computes each sequence's next tokens; returns their logits [num_tokens, vocab_size]."""
        names = sorted(work, key=lambda name: len(work[name]) != 1)
        counts = [len(work[name]) for name in names]
        positions, slots = [], []
        for name, count in zip(names, counts, strict=True):
            start = self.lengths.get(name, 0)
            self.lengths[name] = start + count
            pages = self.pages.setdefault(name, [])
            while len(pages) * self.block_size < start + count:
                pages.append(self.free.pop())
            positions += range(start, start + count)
            slots += [
                pages[at // self.block_size] * self.block_size + at % self.block_size
                for at in range(start, start + count)
            ]
        width = max(len(self.pages[name]) for name in names)
        table = [self.pages[name] + [0] * (width - len(self.pages[name])) for name in names]
        lengths = [self.lengths[name] for name in names]
        batch = ForwardBatch(
            token_ids=torch.tensor([token for name in names for token in work[name]]),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            query_start=torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=torch.tensor(table, dtype=torch.int32),
            logits_indices=torch.arange(sum(counts)),
            num_decodes=counts.count(1),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
        )
        logits = self.model.logits(self.model.forward(batch, self.kv))
        return dict(zip(names, logits.split(counts), strict=True))

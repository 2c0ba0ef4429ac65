"""Decode steps as CUDA graphs: a few batch sizes captured at load, and replayed with padding."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs, store_tokens
from inferx_kernels.triton.tuning import decode_chunk
from torch import Tensor

from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, StepAttention, most_keys
from inferx.model.gpu.capturing import Capturing
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.sampler import GpuSampler
from inferx.model.gpu.slots import Slots
from inferx.model.upload import upload_into
from inferx.sparse.serving import MAX_TOKENS

PathName = Literal["dense", "sparse"]


def bucket_sizes(largest: int) -> list[int]:
    """1, 2, 4, 8, then by 8 to 64, by 16 to 256, by 32 to 512, by 64 on; `largest` is the last."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32)]
    sizes += range(512, largest + 64, 64)
    return [size for size in sizes if size < largest] + [largest]


class _Bucket(NamedTuple):
    """Two graphs, so that logits can be edited between them."""

    size: int
    forward: Callable[[], object]
    sample: Callable[[], object]
    step: StepAttention  # graphs write to its memory, and keep no reference to it


class DecodeGraphs:
    """Steps in which every row decodes. All buckets share buffers of the largest one's size."""

    def __init__(
        self,
        slots: Slots,
        sampler: GpuSampler,
        shape: AttentionShape,
        capturing: Capturing,
        limits: Limits,
        *,
        vocab_size: int,
    ) -> None:
        """`capture` makes the graphs."""
        self._slots, self._sampler, self._shape = slots, sampler, shape
        self._capturing = capturing
        self._block_size = limits.block_size
        max_num_seqs = limits.max_num_seqs
        state = slots.state
        device = state.token_pool.device

        def zeros(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self._rows = zeros(2 * max_num_seqs, dtype=torch.int32)
        self._query_start = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._inputs = StepInputs.allocate(
            max_num_seqs, max_num_seqs, state.block_table.shape[1], state.rotation
        )
        self._logits = zeros(max_num_seqs, vocab_size, dtype=torch.float32)
        self._tokens = zeros(max_num_seqs, dtype=torch.int64)
        self._sizes: dict[PathName, list[int]] = {
            "dense": bucket_sizes(max_num_seqs),
            # Of every number of rows: one that nobody has would have its channels read
            "sparse": list(range(1, min(MAX_TOKENS, max_num_seqs) + 1)),
        }
        self._buckets: dict[tuple[PathName, int], _Bucket] = {}

    def capture(self, path: PathName, model: GpuLlama, kv: list[KVCache]) -> None:
        """Graphs for every size of a path, on the current stream."""
        for size in reversed(self._sizes[path]):  # the smaller find their memory in the largest's
            bucket = self._bucket(size, model, kv)
            self._buckets[path, size] = bucket._replace(
                forward=self._capturing(bucket.forward), sample=self._capturing(bucket.sample)
            )

    def launch(self, path: PathName, model: GpuLlama, kv: list[KVCache]) -> None:
        """A step of each size of rows that nobody has, without graphs: to compile its kernels."""
        for size in self._sizes[path]:
            bucket = self._bucket(size, model, kv)
            bucket.forward()
            bucket.sample()

    def forward(self, plan: Plan) -> Tensor:
        """Launches the plan's forward pass; its logits, until the next step: [num_rows, vocab]."""
        bucket = self._bucket_for(plan)
        rows = np.full((2, bucket.size), -1, dtype=np.int32)
        rows[0, : len(plan.slots)] = plan.slots
        rows[1, : len(plan.slots)] = plan.starts
        upload_into(self._rows[: 2 * bucket.size], rows.reshape(-1))
        bucket.forward()
        return self._logits[: len(plan.slots)]

    def sample(self, plan: Plan) -> Tensor:
        """Launches the choice of tokens by unedited logits: [num_rows] int64, stored already."""
        self._bucket_for(plan).sample()
        return self._tokens[: len(plan.slots)]

    def _bucket_for(self, plan: Plan) -> _Bucket:
        path: PathName = "sparse" if plan.sparsity else "dense"
        sizes = self._sizes[path]
        return self._buckets[path, sizes[bisect.bisect_left(sizes, len(plan.slots))]]

    def _bucket(self, size: int, model: GpuLlama, kv: list[KVCache]) -> _Bucket:
        rows = StepRows(
            self._rows[:size], self._rows[size : 2 * size], self._query_start[: size + 1]
        )
        inputs = self._inputs.first_tokens(size)
        state = self._slots.state
        max_model_len = state.token_pool.shape[1]
        max_tokens = most_keys(kv[0], size, max_model_len)
        chunk = decode_chunk(size, self._shape.num_kv_heads, max_model_len)
        plans = self._shape.decode_plans(size, max_tokens, chunk, self._rows.device)
        step = StepAttention(inputs, size, plans, None)

        def forward() -> None:
            prepare_inputs(rows, state, inputs, block_size=self._block_size, max_query_len=1)
            model.logits(model.forward(step, kv), self._logits[:size])

        def sample() -> None:
            # A row's length is the position of the token that it lacks
            tokens = self._sampler.choose(self._logits[:size], rows.slots, inputs.seq_lens)
            self._tokens[:size].copy_(tokens)
            store_tokens(state.token_pool, rows.slots, inputs.seq_lens, tokens)

        self._rows.fill_(-1)
        return _Bucket(size, forward, sample, step)

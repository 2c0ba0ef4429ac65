"""Steps with prompts in them: launched kernel by kernel, since no two are of one size."""

from __future__ import annotations

import numpy as np
import torch
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs
from inferx_kernels.triton.tuning import LARGEST_CHUNK
from torch import Tensor

from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, StepAttention, prompt_rows
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.slots import Slots
from inferx.model.gpu.upload import upload_int32


class MixedSteps:
    """Prompts, or parts of them, and decode rows beside them."""

    def __init__(self, slots: Slots, shape: AttentionShape, *, block_size: int) -> None:
        self._state = slots.state
        self._shape = shape
        self._block_size = block_size
        self._device = slots.state.token_pool.device

    def forward(self, model: GpuLlama, plan: Plan, kv: list[KVCache]) -> Tensor:
        """The hidden states of the rows that sample: [num_samples, hidden_size]."""
        counts = np.array(plan.num_tokens)
        ends = counts.cumsum()
        seq_lens = np.array(plan.starts) + counts
        num_rows, decodes = len(counts), plan.num_decodes
        packed = np.concatenate([plan.slots, plan.starts, [0], ends])
        sizes = [num_rows, num_rows, num_rows + 1]
        rows = StepRows(*upload_int32(packed, self._device).split(sizes))
        num_columns = -(-int(seq_lens.max()) // self._block_size)
        inputs = self._allocate(num_rows, int(ends[-1]), num_columns)
        prepare_inputs(
            rows,
            self._state,
            inputs,
            block_size=self._block_size,
            max_query_len=int(counts.max()),
        )
        # Chunks of one size, whatever the number of decode rows: one kernel less to compile
        decode_plans = self._shape.decode_plans(
            max(1, decodes), int(seq_lens[:decodes].sum()), LARGEST_CHUNK, self._device
        )
        prompts = prompt_rows(
            inputs, rows.query_start, decodes, seq_lens[decodes:].tolist(), kv[0].k.dtype
        )
        hidden = model.forward(StepAttention(inputs, decodes, decode_plans, prompts), kv)
        last_tokens = ends[np.array(plan.samples, dtype=bool)] - 1
        return hidden[upload_int32(last_tokens, self._device)]

    def _allocate(self, num_rows: int, num_tokens: int, num_columns: int) -> StepInputs:
        def empty(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=self._device)

        rotary_dim = self._state.rotation.cos.shape[-1]
        angles = (empty(num_tokens, 1, rotary_dim, dtype=torch.float32) for _ in range(2))
        return StepInputs(
            # Zeros where nothing fills them: while kernels are only compiled
            torch.zeros(num_tokens, dtype=torch.int64, device=self._device),
            empty(num_tokens, dtype=torch.int64),
            Rotation(*angles),
            empty(num_rows, dtype=torch.int32),
            empty(num_rows, num_columns, dtype=torch.int32),
        )

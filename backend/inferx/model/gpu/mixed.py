"""Steps with prompts in them: prompts, or parts of them, and decode rows beside them."""

from __future__ import annotations

import numpy as np
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs
from inferx_kernels.triton.tuning import LARGEST_CHUNK
from torch import Tensor

from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, StepAttention, prompt_rows
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.mixed_graphs import MixedGraphs
from inferx.model.gpu.slots import Slots
from inferx.model.upload import upload_int32


class MixedSteps:
    """Small ones replay a graph; large ones, of which no two are alike, launch kernel by kernel."""

    def __init__(
        self, slots: Slots, shape: AttentionShape, graphs: MixedGraphs, limits: Limits
    ) -> None:
        self._state = slots.state
        self._shape = shape
        self._graphs = graphs
        self._block_size, self._most_copied = limits.block_size, limits.most_copied
        self._device = slots.state.token_pool.device

    def forward(self, model: GpuLlama, plan: Plan, kv: list[KVCache]) -> Tensor:
        """The hidden states of the rows that sample: [num_samples, hidden_size]."""
        size = self._graphs.size_for(plan)
        hidden = self._launch(model, plan, kv) if size is None else self._graphs.replay(size, plan)
        last_tokens = np.cumsum(plan.num_tokens)[np.array(plan.samples, dtype=bool)] - 1
        return hidden[upload_int32(last_tokens, self._device)]

    def _launch(self, model: GpuLlama, plan: Plan, kv: list[KVCache]) -> Tensor:
        counts = np.array(plan.num_tokens)
        ends = counts.cumsum()
        seq_lens = np.array(plan.starts) + counts
        num_rows, decodes, num_tokens = len(counts), plan.num_decodes, int(ends[-1])
        packed = np.concatenate([plan.slots, plan.starts, [0], ends])
        sizes = [num_rows, num_rows, num_rows + 1]
        rows = StepRows(*upload_int32(packed, self._device).split(sizes))
        num_columns = -(-int(seq_lens.max()) // self._block_size)
        inputs = StepInputs.allocate(num_tokens, num_rows, num_columns, self._state.rotation)
        prepare_inputs(
            rows,
            self._state,
            inputs,
            block_size=self._block_size,
            max_query_len=int(counts.max()),
        )
        # Chunks of one size, whatever the number of decode rows: one kernel less to compile
        decode_plans = self._shape.decode_plans(
            decodes, int(seq_lens[:decodes].sum()), LARGEST_CHUNK, self._device
        )
        prompts = prompt_rows(
            rows.query_start[decodes:],
            inputs.seq_lens[decodes:],
            inputs.block_table[decodes:],
            num_tokens=num_tokens - decodes,
            num_keys=int(seq_lens[decodes:].sum()),
            max_seq_len=int(seq_lens[decodes:].max()),
            most_copied=self._most_copied,
            dtype=kv[0].k.dtype,
        )
        return model.forward(StepAttention(inputs, decodes, decode_plans, prompts), kv)

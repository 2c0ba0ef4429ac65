"""Small steps with prompts in them as CUDA graphs.

Up to some two thousand tokens the device is done with a step's kernels before the host has launched
them one by one. A graph takes any step of up to its number of tokens: its first rows may decode,
a row a token, and the rows behind them are prompts; tokens and rows that a step lacks are nobody's.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs
from inferx_kernels.triton.tuning import LARGEST_CHUNK
from torch import Tensor

from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import (
    AttentionShape,
    StepAttention,
    most_keys,
    prompt_rows,
    widens,
)
from inferx.model.gpu.capturing import Capturing
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.slots import Slots
from inferx.model.upload import upload_into

LARGEST = 2048  # tokens of a step
MOST_PROMPTS = 16  # of a step
_KEYS = 2  # a token: for the copy of prompts' e4m3 pages


def step_sizes(budget: int) -> list[int]:
    """Tokens, none more than `budget`: each of them takes 0.1 to 0.2 s to capture."""
    sizes = [*range(64, 256, 64), *range(256, 768, 128), *range(768, LARGEST, 256)]
    return [size for size in sizes if size < budget] + [min(budget, LARGEST)]


class _Step(NamedTuple):
    """A graph, or what is to become one. Its memory lives as long as it does."""

    run: Callable[[], object]
    rows: Tensor  # int32, as _packed makes them
    attention: StepAttention


class MixedGraphs:
    """All sizes share buffers of the largest one's size."""

    def __init__(
        self,
        slots: Slots,
        shape: AttentionShape,
        capturing: Capturing,
        limits: Limits,
        *,
        page_dtype: torch.dtype,
        hidden_size: int,
        dtype: torch.dtype,
    ) -> None:
        """dtype: of hidden states. `capture` makes the graphs."""
        self._state = slots.state
        self._shape = shape
        self._capturing = capturing
        self._block_size = limits.block_size
        self._sizes = step_sizes(limits.budget)
        self._max_num_seqs = limits.max_num_seqs
        rotation, max_blocks = self._state.rotation, self._state.block_table.shape[1]
        device = rotation.cos.device
        largest = self._sizes[-1]
        self._rows = torch.zeros(_packed_len(largest), dtype=torch.int32, device=device)
        self._query_start = torch.arange(largest + 1, dtype=torch.int32, device=device)
        # Every token is a row here, and has a length; pages only those that may decode, the first
        most_decodes = min(largest, self._max_num_seqs)
        self._decodes = StepInputs.allocate(largest, most_decodes, max_blocks, rotation)._replace(
            seq_lens=torch.empty(largest, dtype=torch.int32, device=device)
        )
        self._hidden = torch.empty(largest, hidden_size, dtype=dtype, device=device)
        self._prompts = StepInputs.allocate(0, MOST_PROMPTS, max_blocks, rotation)
        self._page_dtype = page_dtype
        self._steps: dict[int, _Step] = {}

    def capture(self, model: GpuLlama, kv: list[KVCache]) -> None:
        """A graph for every size, on the current stream."""
        for size in reversed(self._sizes):  # the smaller ones find their memory in the largest's
            step = self._step(size, model, kv)
            self._steps[size] = step._replace(run=self._capturing(step.run))

    def launch(self, model: GpuLlama, kv: list[KVCache], sizes: list[int] | None = None) -> None:
        """A step that nobody has of each size, or these, without graphs."""
        for size in sizes or self._sizes:
            self._step(size, model, kv).run()

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    def size_for(self, plan: Plan) -> int | None:
        """The graph that takes this plan, if one does."""
        num_tokens = sum(plan.num_tokens)
        decodes = plan.num_decodes
        if not self._steps or num_tokens > self.largest:
            return None
        if len(plan.slots) - decodes > MOST_PROMPTS:
            return None
        size = self._sizes[bisect.bisect_left(self._sizes, num_tokens)]
        num_keys = sum(plan.starts[decodes:]) + num_tokens - decodes
        if widens(size, self._page_dtype) and num_keys > _KEYS * size:
            return None
        return size

    def replay(self, size: int, plan: Plan) -> Tensor:
        """Hidden states, until the next step: [size, hidden_size], the plan's tokens first."""
        step = self._steps[size]
        upload_into(step.rows, _packed(plan, size))
        step.run()
        return self._hidden[:size]

    def _step(self, size: int, model: GpuLlama, kv: list[KVCache]) -> _Step:
        state, device = self._state, self._rows.device
        packed = self._rows[: _packed_len(size)]
        counts = [size, size, MOST_PROMPTS, MOST_PROMPTS, MOST_PROMPTS + 1]
        slots, starts, *prompts = packed.split(counts)
        decode_rows = StepRows(slots, starts, self._query_start[: size + 1])
        prompt_step_rows = StepRows(*prompts)
        inputs = self._decodes.first_tokens(size)
        of_prompts = inputs._replace(
            seq_lens=self._prompts.seq_lens, block_table=self._prompts.block_table
        )
        max_model_len = state.token_pool.shape[1]
        decodes = min(size, self._max_num_seqs)
        max_tokens = most_keys(kv[0], decodes, max_model_len)
        plans = self._shape.decode_plans(decodes, max_tokens, LARGEST_CHUNK, device)

        def run() -> None:
            # Of all tokens, so that those behind the decodes are nobody's, but for the prompts'
            prepare_inputs(decode_rows, state, inputs, block_size=self._block_size, max_query_len=1)
            prepare_inputs(
                prompt_step_rows, state, of_prompts, block_size=self._block_size, max_query_len=size
            )
            rows = prompt_rows(
                prompt_step_rows.query_start,
                of_prompts.seq_lens,
                of_prompts.block_table,
                num_tokens=size,
                num_keys=_KEYS * size,
                max_seq_len=min(_KEYS * size, max_model_len),
                most_copied=_KEYS * size,
                dtype=self._page_dtype,
            )
            step = StepAttention(inputs, decodes, plans, rows)
            self._hidden[:size].copy_(model.forward(step, kv))

        packed.copy_(torch.from_numpy(_nobody(size)))
        return _Step(run, packed, StepAttention(inputs, decodes, plans, None))


def _packed_len(size: int) -> int:
    return 2 * size + 3 * MOST_PROMPTS + 1


def _nobody(size: int) -> np.ndarray:
    """Rows of a step without any."""
    packed = np.zeros(_packed_len(size), dtype=np.int32)
    packed[: 2 * size] = -1
    packed[2 * size : 2 * size + MOST_PROMPTS] = -1
    return packed


def _packed(plan: Plan, size: int) -> np.ndarray:
    """Decode rows' slots and starts, prompts' slots and starts, and where these begin and end."""
    decodes, prompts = plan.num_decodes, len(plan.slots) - plan.num_decodes
    packed = _nobody(size)
    packed[:decodes] = plan.slots[:decodes]
    packed[size : size + decodes] = plan.starts[:decodes]
    rest = packed[2 * size :]
    rest[:prompts] = plan.slots[decodes:]
    rest[MOST_PROMPTS : MOST_PROMPTS + prompts] = plan.starts[decodes:]
    ends = rest[2 * MOST_PROMPTS :]
    ends[0] = decodes
    ends[1 : prompts + 1] = decodes + np.cumsum(plan.num_tokens[decodes:])
    ends[prompts + 1 :] = ends[prompts]
    return packed

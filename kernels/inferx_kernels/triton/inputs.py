"""A step's inputs, made on the device from what it keeps of each request by slot.

The reference is `inferx.model.input_batch.InputBatch.forward_batch` with
`inferx_kernels.rope.plan_rope`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferx_kernels.rope import Rotation
from inferx_kernels.triton.sizes import cdiv, next_power_of_2

STORED_AT_ONCE = 128  # tokens


@triton.jit(
    do_not_specialize=["row_table_stride"],
    do_not_specialize_on_alignment=["slots_ptr", "starts_ptr", "query_start_ptr"],
)
def prepare_inputs_kernel(
    slots_ptr,
    starts_ptr,  # [num_rows] int32 each
    query_start_ptr,  # [num_rows + 1] int32
    token_pool_ptr,  # [num_slots, pool_stride] int32
    block_table_ptr,  # [num_slots, table_stride] int32
    cos_table_ptr,
    sin_table_ptr,  # [max_model_len, ROTARY_DIM] fp32
    token_ids_ptr,
    slot_mapping_ptr,  # [num_tokens] int64
    cos_ptr,
    sin_ptr,  # [num_tokens, ROTARY_DIM] fp32
    seq_lens_ptr,  # [num_rows] int32
    row_table_ptr,  # [num_rows, row_table_stride] int32
    pool_stride,
    table_stride,
    row_table_stride,
    BLOCK_SIZE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_T: tl.constexpr,  # tokens a program
    BLOCK_C: tl.constexpr,  # pages at a time
):
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    start = tl.load(starts_ptr + row)
    first = tl.load(query_start_ptr + row)
    count = tl.load(query_start_ptr + row + 1) - first
    is_real = slot >= 0
    slot = tl.maximum(slot, 0)
    table_ptr = block_table_ptr + slot * table_stride
    places = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    ok = places < count
    positions = tl.where(is_real, start + places, 0)
    token = tl.load(token_pool_ptr + slot * pool_stride + positions, mask=ok & is_real, other=0)
    page = tl.load(table_ptr + positions // BLOCK_SIZE, mask=ok & is_real, other=0).to(tl.int64)
    target = tl.where(is_real, page * BLOCK_SIZE + positions % BLOCK_SIZE, -1)
    tl.store(token_ids_ptr + first + places, token.to(tl.int64), mask=ok)
    tl.store(slot_mapping_ptr + first + places, target, mask=ok)

    features = tl.arange(0, BLOCK_R)
    turned = ok[:, None] & (features < ROTARY_DIM)[None, :]
    source = positions[:, None] * ROTARY_DIM + features[None, :]
    goal = (first + places)[:, None] * ROTARY_DIM + features[None, :]
    tl.store(cos_ptr + goal, tl.load(cos_table_ptr + source, mask=turned), mask=turned)
    tl.store(sin_ptr + goal, tl.load(sin_table_ptr + source, mask=turned), mask=turned)

    if tl.program_id(1) == 0:
        length = tl.where(is_real, start + count, 0)
        tl.store(seq_lens_ptr + row, length)
        num_pages = (length + BLOCK_SIZE - 1) // BLOCK_SIZE
        for begin in range(0, num_pages, BLOCK_C):
            columns = begin + tl.arange(0, BLOCK_C)
            pages = tl.load(table_ptr + columns, mask=columns < num_pages, other=0)
            tl.store(
                row_table_ptr + row.to(tl.int64) * row_table_stride + columns,
                pages,
                mask=columns < num_pages,
            )


@triton.jit(do_not_specialize=["num_rows"])
def store_tokens_kernel(
    token_pool_ptr,  # [num_slots, pool_stride] int32
    slots_ptr,
    positions_ptr,  # [num_rows] int32 each
    token_ids_ptr,  # [num_rows] int64
    pool_stride,
    num_rows,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + rows, mask=rows < num_rows, other=-1).to(tl.int64)
    position = tl.load(positions_ptr + rows, mask=slot >= 0, other=0)
    token = tl.load(token_ids_ptr + rows, mask=slot >= 0, other=0)
    tl.store(token_pool_ptr + slot * pool_stride + position, token.to(tl.int32), mask=slot >= 0)


class StepRows(NamedTuple):
    """What the host says of a step: its rows, pure decodes first."""

    slots: Tensor  # [num_rows] int32; negative: a row of one token that nobody has
    starts: Tensor  # [num_rows] int32
    query_start: Tensor  # [num_rows + 1] int32


class SlotState(NamedTuple):
    """What the device keeps, by slot or by position."""

    token_pool: Tensor  # [num_slots, max_model_len] int32
    block_table: Tensor  # [num_slots, max_blocks] int32
    rotation: Rotation  # of positions: [max_model_len, 1, rotary_dim]


class StepInputs(NamedTuple):
    """Where the inputs go."""

    token_ids: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64; -1 for rows that nobody has
    rotation: Rotation  # [num_tokens, 1, rotary_dim]
    seq_lens: Tensor  # [num_rows] int32, this step's tokens included; 0 for rows that nobody has
    block_table: Tensor  # [num_rows, max_blocks] int32, written as far as a row has pages

    @classmethod
    def allocate(
        cls, num_tokens: int, num_rows: int, max_blocks: int, like: Rotation
    ) -> StepInputs:
        """like: angles of any number of positions."""
        rotary_dim, device = like.cos.shape[-1], like.cos.device
        angles = (like.cos.new_empty(num_tokens, 1, rotary_dim) for _ in range(2))
        return cls(
            # Zeros where nothing fills them: while kernels are only compiled
            torch.zeros(num_tokens, dtype=torch.int64, device=device),
            torch.empty(num_tokens, dtype=torch.int64, device=device),
            Rotation(*angles),
            torch.empty(num_rows, dtype=torch.int32, device=device),
            torch.empty(num_rows, max_blocks, dtype=torch.int32, device=device),
        )

    def first_tokens(self, count: int) -> StepInputs:
        """Of a step of so many rows of one token."""
        rotation = Rotation(self.rotation.cos[:count], self.rotation.sin[:count])
        rows = self.seq_lens[:count], self.block_table[:count]
        return StepInputs(self.token_ids[:count], self.slot_mapping[:count], rotation, *rows)


def prepare_inputs(
    rows: StepRows, state: SlotState, inputs: StepInputs, *, block_size: int, max_query_len: int
) -> None:
    """Fills `inputs`. block_size: tokens a page; max_query_len: the largest row's tokens."""
    rotary_dim = state.rotation.cos.shape[-1]
    block_t = 1 if max_query_len == 1 else 16
    prepare_inputs_kernel[(len(rows.slots), cdiv(max_query_len, block_t))](
        rows.slots,
        rows.starts,
        rows.query_start,
        state.token_pool,
        state.block_table,
        state.rotation.cos,
        state.rotation.sin,
        inputs.token_ids,
        inputs.slot_mapping,
        inputs.rotation.cos,
        inputs.rotation.sin,
        inputs.seq_lens,
        inputs.block_table,
        state.token_pool.stride(0),
        state.block_table.stride(0),
        inputs.block_table.stride(0),
        BLOCK_SIZE=block_size,
        ROTARY_DIM=rotary_dim,
        BLOCK_R=next_power_of_2(rotary_dim),
        BLOCK_T=block_t,
        BLOCK_C=128,
        num_warps=4 if block_t > 1 else 1,
    )


def store_tokens(token_pool: Tensor, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
    """token_pool[slots[i], positions[i]] = token_ids[i], but where a slot is negative.

    token_pool: [num_slots, max_model_len] int32; slots, positions: [num_rows] int32; token_ids:
    [num_rows] int64.
    """
    num_rows = len(slots)
    store_tokens_kernel[(cdiv(num_rows, STORED_AT_ONCE),)](
        token_pool,
        slots,
        positions,
        token_ids,
        token_pool.stride(0),
        num_rows,
        BLOCK=STORED_AT_ONCE,
        num_warps=1,
    )

"""A step's inputs made on the device equal those that the reference makes."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.model.gpu.slots import Slots
from inferx.model.input_batch import InputBatch
from inferx_kernels.rope import Rotation, plan_rope
from inferx_kernels.triton.inputs import StepInputs, StepRows, prepare_inputs, store_tokens

BLOCK_SIZE, MAX_LEN, ROTARY_DIM = 16, 96, 6
INV_FREQ = torch.tensor([1.0, 0.3, 0.05], device=cases.DEVICE)


def make_plan(*rows: tuple[int, int, int], new: bool = False) -> Plan:
    """Rows of slot, start and count; new ones bring their tokens and pages."""
    slots, starts, counts = (list(column) for column in zip(*rows, strict=True))
    brought = [
        NewRow(slot, [slot * 100 + i for i in range(70)], 70, SamplingParams(), 0) for slot in slots
    ]
    pages = [(slot, 0, [slot * 10 + i for i in range(6)]) for slot in slots]
    return Plan(
        0, slots, starts, counts, [True] * len(rows), counts.count(1),
        brought if new else [], pages if new else [], [],
    )  # fmt: skip


def empty_inputs(num_rows: int, num_tokens: int, columns: int) -> StepInputs:
    def full(*size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(size, 99, dtype=dtype, device=cases.DEVICE)

    angles = [full(num_tokens, 1, ROTARY_DIM, dtype=torch.float32) for _ in range(2)]
    return StepInputs(
        full(num_tokens, dtype=torch.int64), full(num_tokens, dtype=torch.int64),
        Rotation(*angles), full(num_rows, dtype=torch.int32),
        full(num_rows, columns, dtype=torch.int32),
    )  # fmt: skip


def on_device(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=cases.DEVICE)


@pytest.fixture
def slots() -> Slots:
    rotation = plan_rope(torch.arange(MAX_LEN, device=cases.DEVICE), INV_FREQ, 1.0)
    slots = Slots(4, max_model_len=MAX_LEN, block_size=BLOCK_SIZE, rotation=rotation)
    slots.apply(make_plan((0, 0, 1), (3, 0, 1), (2, 0, 1), new=True))
    return slots


@pytest.mark.parametrize(
    "rows", [[(3, 69, 1), (0, 5, 1)], [(0, 20, 1), (3, 0, 40), (2, 30, 17)], [(2, 0, 70)]]
)
def test_inputs_equal_the_reference(slots: Slots, rows: list[tuple[int, int, int]]) -> None:
    reference = InputBatch(
        4, max_model_len=MAX_LEN, block_size=BLOCK_SIZE, device=torch.device("cpu")
    )
    for row in make_plan((0, 0, 1), (3, 0, 1), (2, 0, 1), new=True).new_rows:
        reference.add(row)
    reference.update_blocks([(s, 0, [s * 10 + i for i in range(6)]) for s in (0, 3, 2)])
    wanted = reference.forward_batch(make_plan(*rows))
    rotation = plan_rope(wanted.positions.to(cases.DEVICE), INV_FREQ, 1.0)

    counts = [count for _, _, count in rows]
    inputs = empty_inputs(len(rows), sum(counts), wanted.block_table.shape[1])
    step_rows = StepRows(
        on_device([slot for slot, _, _ in rows]), on_device([start for _, start, _ in rows]),
        on_device([0, *torch.tensor(counts).cumsum(0).tolist()]),
    )  # fmt: skip
    prepare_inputs(step_rows, slots.state, inputs, block_size=BLOCK_SIZE, max_query_len=max(counts))
    assert inputs.token_ids.tolist() == wanted.token_ids.tolist()
    assert inputs.slot_mapping.tolist() == wanted.slot_mapping.tolist()
    assert inputs.seq_lens.tolist() == wanted.seq_lens.tolist()
    assert torch.equal(inputs.rotation.cos, rotation.cos)
    assert torch.equal(inputs.rotation.sin, rotation.sin)
    for row, length in enumerate(wanted.seq_lens.tolist()):
        pages = -(-length // BLOCK_SIZE)
        got = inputs.block_table[row].tolist()
        assert got[:pages] == wanted.block_table[row, :pages].tolist()
        assert set(got[pages:]) <= {99}  # only as many as the row has


@pytest.mark.parametrize("start", [-1, 5])
def test_rows_that_nobody_has_are_empty_wherever_they_start(slots: Slots, start: int) -> None:
    inputs = empty_inputs(2, 2, 6)
    rows = StepRows(on_device([3, -1]), on_device([7, start]), on_device([0, 1, 2]))
    prepare_inputs(rows, slots.state, inputs, block_size=BLOCK_SIZE, max_query_len=1)
    assert inputs.token_ids.tolist() == [307, 0]
    assert inputs.slot_mapping.tolist() == [30 * 16 + 7, -1]
    assert inputs.seq_lens.tolist() == [8, 0]


def test_tokens_are_stored_but_for_rows_that_nobody_has(slots: Slots) -> None:
    pool = slots.state.token_pool
    before = pool.clone()
    token_ids = torch.tensor([11, 22, 33], device=cases.DEVICE)
    store_tokens(pool, on_device([2, -1, 0]), on_device([70, 0, 95]), token_ids)
    before[2, 70], before[0, 95] = 11, 33
    assert torch.equal(pool, before)

"""A step's inputs, number by number."""

from __future__ import annotations

import torch
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.model.input_batch import InputBatch, SamplingRows


def make_batch() -> InputBatch:
    """Slot 1 holds tokens 100, 101, ... in pages 7, 3; slot 3 holds 200, ... in page 5."""
    batch = InputBatch(4, max_model_len=64, block_size=16, device=torch.device("cpu"))
    batch.add(NewRow(1, list(range(100, 120)), 20, SamplingParams(), 0))
    batch.add(NewRow(3, list(range(200, 209)), 9, SamplingParams(), 0))
    batch.update_blocks([(1, 0, [7]), (3, 0, [5]), (1, 1, [3])])
    return batch


def plan_of(*rows: tuple[int, int, int, bool]) -> Plan:
    slots, starts, counts, samples = (list(column) for column in zip(*rows, strict=True))
    return Plan(0, slots, starts, counts, samples, counts.count(1), [], [], [])


def test_a_mixed_step():
    batch = make_batch().forward_batch(plan_of((3, 8, 1, True), (1, 14, 4, False)))
    assert batch.token_ids.tolist() == [208, 114, 115, 116, 117]
    assert batch.positions.tolist() == [8, 14, 15, 16, 17]
    assert batch.slot_mapping.tolist() == [5 * 16 + 8, 7 * 16 + 14, 7 * 16 + 15, 48, 49]
    assert batch.query_start.tolist() == [0, 1, 5]
    assert batch.seq_lens.tolist() == [9, 18]
    assert batch.block_table.tolist() == [[5, 0], [7, 3]]
    assert batch.logits_indices.tolist() == [0]
    assert (batch.num_decodes, batch.max_query_len, batch.max_seq_len) == (1, 4, 18)


def test_a_sampled_token_is_the_next_steps_input():
    batch = make_batch()
    plan = plan_of((3, 8, 1, True), (1, 0, 5, False), (1, 5, 15, True))
    rows = SamplingRows.of(plan)
    assert (rows.slots.tolist(), rows.positions.tolist()) == ([3, 1], [9, 20])
    batch.store(rows, torch.tensor([77, 88]))
    following = batch.forward_batch(plan_of((3, 9, 1, True), (1, 20, 1, True)))
    assert following.token_ids.tolist() == [77, 88]
    assert following.slot_mapping.tolist() == [5 * 16 + 9, 3 * 16 + 4]


def test_a_slots_next_request_replaces_its_tokens_and_pages():
    batch = make_batch()
    batch.add(NewRow(1, [7, 8, 9], 2, SamplingParams(), 0))
    batch.update_blocks([(1, 0, [2])])
    after = batch.forward_batch(plan_of((1, 0, 3, True)))
    assert after.token_ids.tolist() == [7, 8, 9]
    assert after.slot_mapping.tolist() == [32, 33, 34]

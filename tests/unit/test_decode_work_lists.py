"""How much room the captured steps' work lists of decode attention have."""

from __future__ import annotations

from pathlib import Path

import kernel_cases as cases
import pytest
import torch
from inferx.errors import ModelLoadError
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, most_keys
from inferx.model.gpu.startup import check_rows
from inferx.source import ModelSource
from inferx_kernels.triton.attention import plan_decode

PAGES = KVCache(*(torch.zeros(40, 16, 2, 16, device=cases.DEVICE) for _ in range(2)))  # 640 tokens


def test_rows_that_share_all_pages_of_the_cache_have_room() -> None:
    shape = AttentionShape(4, 2, 16, frozenset({None, 200}))
    keys = most_keys(PAGES, 8, max_model_len=1024)
    plans = shape.decode_plans(8, keys, 128, cases.DEVICE)
    for window, num_items in ((None, 8 * 5), (200, 8 * 2)):
        plan = plans[window]
        plan_decode(plan, torch.full((8,), 640, dtype=torch.int32, device=cases.DEVICE))
        assert plan.num_items.item() == num_items <= len(plan.items)


def test_rows_that_each_begin_one_more_chunk_have_room() -> None:
    plan = AttentionShape(4, 2, 16, frozenset({None})).decode_plans(8, 8 * 129, 128, cases.DEVICE)
    plan_decode(plan[None], torch.full((8,), 129, dtype=torch.int32, device=cases.DEVICE))
    assert plan[None].num_items.item() == 8 * 2 <= len(plan[None].items)


def test_no_row_is_longer_than_the_model_takes() -> None:
    assert most_keys(PAGES, 8, max_model_len=1024) == 8 * 640
    assert most_keys(PAGES, 8, max_model_len=100) == 8 * 100


def test_as_many_rows_as_the_scratch_memory_holds_get_work_lists() -> None:
    shape = AttentionShape(64, 8, 128, frozenset({None}))
    assert shape.most_rows == 16 * 2**20 // (64 * 130)
    plans = shape.decode_plans(shape.most_rows, 10**6, 128, cases.DEVICE)
    assert len(plans[None].items) <= shape.most_rows + 1


def test_each_row_has_an_arrival_counter_for_every_kv_head() -> None:
    assert AttentionShape(8, 8, 16, frozenset({None})).most_rows == 65_536 // 8


def test_more_sequences_than_that_are_refused_at_load(tmp_path: Path) -> None:
    shape = AttentionShape(64, 8, 128, frozenset({None}))
    source = ModelSource(tmp_path, "huggingface", "large")
    check_rows(2016, shape, source)
    with pytest.raises(ModelLoadError, match=r"max_num_seqs is 2017, .* at most 2016 sequences"):
        check_rows(2017, shape, source)

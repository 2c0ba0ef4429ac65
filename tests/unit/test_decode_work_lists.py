"""How much room the captured steps' work lists of decode attention have."""

from __future__ import annotations

import kernel_cases as cases
import torch
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, most_keys
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


def test_no_row_is_longer_than_the_model_takes() -> None:
    assert most_keys(PAGES, 8, max_model_len=1024) == 8 * 640
    assert most_keys(PAGES, 8, max_model_len=100) == 8 * 100

"""Paged attention against dense attention with an explicit mask, one sequence at a time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from inferx_kernels import ops
from torch import Tensor

HEADS = [(9, 3, 64), (28, 4, 128), (7, 1, 8), (4, 4, 80), (12, 2, 96)]


class Row(NamedTuple):
    seq_len: int  # in the cache after the step
    num_tokens: int  # of the step


class Case(NamedTuple):
    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    block_table: Tensor
    seq_lens: Tensor
    query_start: Tensor
    k: list[Tensor]  # a sequence each: [seq_len, num_kv_heads, head_dim]
    v: list[Tensor]


def make_case(
    rows: list[Row], heads: tuple[int, int, int], block_size: int = 16, dtype=torch.float32
) -> Case:
    """Pages in scattered order; whatever no sequence owns is NaN."""
    generator = torch.Generator().manual_seed(1)
    num_heads, num_kv_heads, head_dim = heads
    pages_of = [-(-row.seq_len // block_size) for row in rows]
    num_blocks = sum(pages_of) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    k_pages, v_pages = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    unused = order[-1]
    table = torch.full((len(rows), max(pages_of)), unused, dtype=torch.int32)
    k, v = [], []
    for i, row in enumerate(rows):
        pages = [order.pop(0) for _ in range(pages_of[i])]
        table[i, : len(pages)] = torch.tensor(pages)
        size = (row.seq_len, num_kv_heads, head_dim)
        for pool, sequences in ((k_pages, k), (v_pages, v)):
            sequence = torch.randn(size, generator=generator)
            sequences.append(sequence)
            for at in range(row.seq_len):
                pool[pages[at // block_size], at % block_size] = sequence[at]
    counts = [row.num_tokens for row in rows]
    q = torch.randn(sum(counts), num_heads, head_dim, generator=generator)
    return Case(
        q.to(dtype),
        k_pages.to(dtype),
        v_pages.to(dtype),
        table,
        torch.tensor([row.seq_len for row in rows], dtype=torch.int32),
        torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32),
        k,
        v,
    )


def paged(case: Case, window: int | None = None) -> Tensor:
    plan = ops.plan_attention(
        case.block_table,
        case.seq_lens,
        case.query_start,
        block_size=case.k_pages.shape[1],
        num_heads=case.q.shape[1],
        num_kv_heads=case.k_pages.shape[2],
        head_dim=case.q.shape[2],
        sliding_window=window,
    )
    return ops.paged_attention(case.q, case.k_pages, case.v_pages, plan, case.q.shape[2] ** -0.5)


def dense(case: Case, window: int | None = None) -> Tensor:
    outs = []
    for q, k, v in zip(case.q.split(case.query_start.diff().tolist()), case.k, case.v, strict=True):
        k, v = k.to(case.q.dtype).double(), v.to(case.q.dtype).double()
        group = q.shape[1] // k.shape[1]
        query = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
        key = torch.arange(len(k))
        seen = key <= query
        if window is not None:
            seen &= query - key < window
        for_all = []
        for head in range(q.shape[1]):
            scores = q[:, head].double() @ k[:, head // group].T * q.shape[2] ** -0.5
            for_all.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, head // group])
        outs.append(torch.stack(for_all, 1))
    return torch.cat(outs)


def assert_equals_dense(case: Case, window: int | None = None, atol: float = 1e-5) -> None:
    torch.testing.assert_close(
        paged(case, window), dense(case, window).to(case.q.dtype), rtol=atol, atol=atol
    )


@pytest.mark.parametrize("heads", HEADS)
def test_decodes_of_different_lengths(heads):
    rows = [Row(n, 1) for n in (1, 15, 16, 17, 100, 33)]
    assert_equals_dense(make_case(rows, heads))


@pytest.mark.parametrize("heads", HEADS)
def test_prefills_from_the_start_in_the_middle_and_with_decodes(heads):
    rows = [Row(40, 1), Row(7, 1), Row(23, 23), Row(70, 30), Row(50, 2), Row(50, 3), Row(9, 9)]
    assert_equals_dense(make_case(rows, heads))


@pytest.mark.parametrize("window", [1, 5, 16, 40, 1000])
def test_a_sliding_window_counts_the_token_itself(window):
    rows = [Row(60, 1), Row(3, 1), Row(60, 60), Row(45, 20), Row(300, 2)]
    assert_equals_dense(make_case(rows, (9, 3, 64)), window)


def test_long_rows_and_rows_of_very_different_lengths():
    rows = [Row(2000, 1), Row(5, 1), Row(900, 1), Row(700, 400)]
    assert_equals_dense(make_case(rows, (9, 3, 64)))


@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_page_sizes(block_size):
    assert_equals_dense(make_case([Row(130, 1), Row(129, 129)], (4, 2, 8), block_size))


def test_one_row_is_the_whole_step():
    assert_equals_dense(make_case([Row(37, 1)], (9, 3, 64)))
    assert_equals_dense(make_case([Row(37, 37)], (9, 3, 64)))


def test_bfloat16_is_computed_in_fp32_and_rounded_once():
    case = make_case([Row(300, 1), Row(64, 64)], (9, 3, 64), dtype=torch.bfloat16)
    assert_equals_dense(case, atol=2**-8)


def test_a_row_of_nan_leaves_the_others_as_they_are():
    case = make_case([Row(20, 1), Row(30, 1), Row(12, 4)], (9, 3, 64))
    expected = paged(case)
    case.q[1] = torch.nan
    got = paged(case)
    assert got[1].isnan().all()
    torch.testing.assert_close(got[[0, 2, 3, 4, 5]], expected[[0, 2, 3, 4, 5]])


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("window", [None, 40, 300])
def test_the_batch_invariant_mode_computes_the_same(window):
    rows = [Row(40, 1), Row(7, 1), Row(300, 1), Row(23, 23), Row(600, 30)]
    assert_equals_dense(make_case(rows, (9, 3, 64)), window)


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("window", [None, 70])
def test_batch_invariant_attention_has_the_same_bits_however_a_row_is_cut(window):
    whole = make_case([Row(530, 530)], (9, 3, 64))
    expected = paged(whole, window)
    for start, end in [(0, 100), (100, 101), (101, 118), (118, 512), (512, 530), (529, 530)]:
        part = whole._replace(
            q=whole.q[start:end],
            seq_lens=torch.tensor([end], dtype=torch.int32),
            query_start=torch.tensor([0, end - start], dtype=torch.int32),
        )
        assert torch.equal(paged(part, window), expected[start:end])


@pytest.mark.usefixtures("batch_invariant")
def test_batch_invariant_attention_has_the_same_bits_whoever_shares_the_step():
    rows = [Row(90, 1), Row(11, 1), Row(300, 290), Row(33, 33)]
    case = make_case(rows, (9, 3, 64))
    together = paged(case)
    for i, row in enumerate(rows):
        start, end = case.query_start[i : i + 2].tolist()
        alone = case._replace(
            q=case.q[start:end],
            block_table=case.block_table[i : i + 1],
            seq_lens=case.seq_lens[i : i + 1],
            query_start=torch.tensor([0, row.num_tokens], dtype=torch.int32),
        )
        assert torch.equal(paged(alone), together[start:end])

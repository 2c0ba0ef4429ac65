"""Which steps with prompts replay a graph, and which."""

from __future__ import annotations

import pytest
import torch
from inferx.engine.plan import Plan
from inferx.model.batch import KVCache
from inferx.model.gpu.attention import AttentionShape, copy_bytes, prompt_rows
from inferx.model.gpu.capturing import Capturing
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.mixed_graphs import LARGEST, MOST_PROMPTS, MixedGraphs, step_sizes
from inferx.model.gpu.slots import Slots
from inferx_kernels.rope import Rotation

LIMITS = Limits(max_num_seqs=32, budget=300, max_model_len=1024, block_size=16)
CPU = torch.device("cpu")


def plan(decodes: int, *prompts: tuple[int, int]) -> Plan:
    """prompts: where each starts, and how many tokens it brings."""
    starts, counts = [9] * decodes, [1] * decodes
    for start, count in prompts:
        starts.append(start)
        counts.append(count)
    return Plan(
        step=1, slots=list(range(len(counts))), starts=starts, num_tokens=counts,
        samples=[True] * len(counts), num_decodes=decodes, new_rows=[], block_updates=[],
        page_copies=[],
    )  # fmt: skip


def graphs(page_dtype: torch.dtype, limits: Limits = LIMITS) -> MixedGraphs:
    angles = Rotation(*(torch.zeros(1024, 1, 16) for _ in range(2)))
    slots = Slots(limits.max_num_seqs, max_model_len=1024, block_size=16, rotation=angles)
    shape = AttentionShape(4, 2, 16, frozenset({None}))
    made = MixedGraphs(
        slots, shape, Capturing(CPU), limits,
        page_dtype=page_dtype, hidden_size=64, dtype=torch.bfloat16,
    )  # fmt: skip
    assert made.size_for(plan(0, (0, 5))) is None  # nothing is captured
    pages = KVCache(*(torch.zeros(4, 16, 2, 16, dtype=page_dtype) for _ in range(2)))
    made.capture(None, [pages])  # type: ignore[arg-type]  # runs no step on a CPU
    return made


@pytest.mark.parametrize("budget", [1, 63, 64, 65, 300, 2048, 8192])
def test_sizes_rise_to_the_budget_and_not_beyond(budget: int) -> None:
    sizes = step_sizes(budget)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(budget, LARGEST)
    assert all(size % 64 == 0 for size in sizes[:-1])


@pytest.mark.parametrize(("max_num_seqs", "budget", "rows"), [(32, 300, 32), (512, 300, 300)])
def test_no_more_rows_have_pages_than_may_decode(max_num_seqs: int, budget: int, rows: int) -> None:
    """A long model's row takes as much as thousands of tokens' other inputs."""
    limits = LIMITS._replace(max_num_seqs=max_num_seqs, budget=budget)
    decodes = graphs(torch.bfloat16, limits)._decodes
    assert decodes.block_table.shape == (rows, limits.max_model_len // limits.block_size)
    assert len(decodes.seq_lens) == len(decodes.token_ids) == budget


def test_a_step_takes_the_smallest_graph_that_holds_its_tokens() -> None:
    bf16 = graphs(torch.bfloat16)
    assert bf16.size_for(plan(3, (0, 30), (5, 31))) == 64
    assert bf16.size_for(plan(3, (0, 30), (5, 32))) == 128
    assert bf16.size_for(plan(0, (0, 300))) == 300
    assert bf16.size_for(plan(0, (0, 301))) is None


def test_more_prompts_than_a_graph_has_rows_for_take_none() -> None:
    bf16 = graphs(torch.bfloat16)
    assert bf16.size_for(plan(8, *[(0, 2)] * MOST_PROMPTS)) == 64
    assert bf16.size_for(plan(8, *[(0, 2)] * (MOST_PROMPTS + 1))) is None


def test_long_contexts_whose_pages_would_be_copied_take_none() -> None:
    long = plan(10, (311, 279))
    assert graphs(torch.bfloat16).size_for(long) == 300
    e4m3 = graphs(torch.float8_e4m3fn)
    assert e4m3.size_for(plan(10, (310, 279))) == 300
    assert e4m3.size_for(plan(10, (322, 279))) is None
    assert e4m3.size_for(plan(10, (900, 100))) == 128  # too small to be copied


@pytest.mark.parametrize(("num_keys", "is_copied"), [(40, True), (41, False)])
def test_no_more_keys_are_copied_than_there_is_memory_for(num_keys: int, is_copied: bool) -> None:
    """As of rows that share a long prefix."""
    rows = prompt_rows(
        torch.tensor([0, 150, 300], dtype=torch.int32),
        torch.tensor([num_keys - 20, 20], dtype=torch.int32),
        torch.zeros(2, 4, dtype=torch.int32),
        num_tokens=300,
        num_keys=num_keys,
        max_seq_len=num_keys,
        most_copied=40,
        dtype=torch.float8_e4m3fn,
    )
    assert (rows.widened is not None) is is_copied


def test_any_one_row_may_be_copied() -> None:
    assert Limits(max_num_seqs=4, budget=64, max_model_len=1000, block_size=16).most_copied == 1000
    assert Limits(max_num_seqs=4, budget=64, max_model_len=100, block_size=16).most_copied == 512


@pytest.mark.parametrize(("pages", "taken"), [(torch.float8_e4m3fn, 640), (torch.bfloat16, 0)])
def test_memory_is_kept_for_keys_and_values_of_e4m3_pages_alone(
    pages: torch.dtype, taken: int
) -> None:
    """10 keys and 10 values, of 2 heads of 8 channels, 2 bytes each."""
    kv = KVCache(*(torch.empty(4, 16, 2, 8, dtype=pages) for _ in range(2)))
    assert copy_bytes(10, kv, torch.bfloat16) == taken

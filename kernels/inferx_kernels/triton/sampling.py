"""From logits to tokens without asking the host: greedy, or filtered and drawn.

The logits are read once for statistics of their blocks (`block_stats_kernel`). From these, one
program a row (`sample_kernel`) knows a bound that every kept token's logit reaches, gathers the
few tokens above it in order, out of the blocks that have one, and finds the exact thresholds of
top-k and top-p among them. What is kept and drawn is what `inferx_kernels.sampling` defines.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferx_kernels.triton.sizes import cdiv, next_power_of_2
from inferx_kernels.triton.token_search import (
    NO_WEIGHT,
    count_bound,
    draw,
    first_above,
    gather_kept,
    highest_floor,
    kept_weights,
    list_blocks,
    load_logits,
    mass_above,
    mass_bound,
    order,
)

CHUNK = 4096  # tokens that a program reads at a time
BLOCK = 64  # tokens whose largest logit is kept
MAX_KEPT = 16_384  # tokens gathered; a row with more above its bound is searched in place
GREEDY_TEMPERATURE = 1e-5


@triton.jit
def block_stats_kernel(
    logits_ptr,  # [num_rows, vocab] fp32
    temperature_ptr,  # [num_rows] fp32
    chunk_top_ptr,  # [num_rows, num_chunks] fp32: largest logit
    chunk_token_ptr,  # [num_rows, num_chunks] int32: the first token that has it
    chunk_sum_ptr,  # [num_rows, num_chunks] fp32: of exp((logit - largest) / temperature)
    block_top_ptr,  # [num_rows, num_chunks * CHUNK / BLOCK] fp32
    block_sum_ptr,  # likewise: as the chunks' sums, with the chunk's largest
    vocab,
    logits_stride,
    GREEDY_TEMPERATURE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    num_chunks = tl.num_programs(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    x = load_logits(row_ptr, token, vocab)
    top = tl.max(x, 0)
    at = row * num_chunks + chunk
    tl.store(chunk_top_ptr + at, top)
    tl.store(chunk_token_ptr + at, tl.min(tl.where(x == top, token, vocab - 1), 0))
    temperature = tl.load(temperature_ptr + row)
    if temperature >= GREEDY_TEMPERATURE:
        scaled = (x - top) / temperature
        weights = tl.where(x > float("-inf"), tl.exp(scaled), 0.0)
        tl.store(chunk_sum_ptr + at, tl.sum(weights, 0))
        place = at * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
        tl.store(block_top_ptr + place, tl.max(tl.reshape(x, [CHUNK // BLOCK, BLOCK]), 1))
        tl.store(block_sum_ptr + place, tl.sum(tl.reshape(weights, [CHUNK // BLOCK, BLOCK]), 1))


@triton.jit
def sample_kernel(
    logits_ptr,  # [num_rows, vocab] fp32
    temperature_ptr,  # [num_rows] fp32
    top_k_ptr,  # [num_rows] int64; 0: all
    top_p_ptr,  # [num_rows] fp32; 1: all
    min_p_ptr,  # [num_rows] fp32; 0: all
    seed_ptr,  # [num_rows] int64
    position_ptr,  # [num_rows] int64
    chunk_top_ptr,
    chunk_token_ptr,
    chunk_sum_ptr,
    block_top_ptr,
    block_sum_ptr,  # of block_stats_kernel
    list_ptr,  # [num_rows, num_chunks * CHUNK / BLOCK] int32: blocks with kept tokens
    kept_ptr,  # [num_rows, MAX_KEPT] fp32: logits
    kept_token_ptr,  # [num_rows, MAX_KEPT] int32
    out_ptr,  # [num_rows] int64
    vocab,
    logits_stride,
    num_chunks,
    GREEDY_TEMPERATURE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_KEPT: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    row = tl.program_id(0)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    at = row * num_chunks + chunks
    tops = tl.load(chunk_top_ptr + at, mask=chunks < num_chunks, other=float("-inf"))
    top = tl.max(tops, 0)
    firsts = tl.load(chunk_token_ptr + at, mask=chunks < num_chunks, other=0)
    likeliest = tl.min(tl.where((tops == top) & (chunks < num_chunks), firsts, vocab - 1), 0)
    tl.store(out_ptr + row, likeliest.to(tl.int64))
    temperature = tl.load(temperature_ptr + row)
    if (temperature < GREEDY_TEMPERATURE) | (top == float("-inf")):
        return

    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    sums = tl.load(chunk_sum_ptr + at, mask=chunks < num_chunks, other=0.0)
    sums = tl.where(tops > float("-inf"), sums * tl.exp((tops - top) / temperature), 0.0)
    total = tl.sum(sums, 0)
    zero = tl.zeros([1], tl.int32)
    counter = tl.load(position_ptr + row + zero).to(tl.int32)
    random, _, _, _ = tl.philox(tl.load(seed_ptr + row + zero), counter, zero, zero, zero)
    uniform = tl.sum((random.to(tl.uint32) >> 9).to(tl.float32), 0) * 1.1920928955078125e-07

    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    cuts_k = (top_k > 0) & (top_k < vocab)
    if (not cuts_k) & (top_p >= 1.0) & (min_p <= 0.0):
        target = total * uniform
        running = tl.cumsum(sums, 0)
        chunk = tl.min(tl.where((running > target) & (sums > 0), chunks, BLOCK_CHUNKS), 0)
        chunk = tl.minimum(chunk, tl.max(tl.where(sums > 0, chunks, 0), 0))
        before = tl.sum(tl.where(chunks < chunk, sums, 0.0), 0)
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        weights = kept_weights(load_logits(row_ptr, token, vocab), -2147483648, top, temperature)
        chosen = first_above(weights, token, before, target)
        chosen = tl.minimum(chosen, tl.max(tl.where(weights > 0, token, 0), 0))
        tl.store(out_ptr + row, chosen.to(tl.int64))
        return

    # A bound that every kept token reaches.
    BLOCKS: tl.constexpr = BLOCK_CHUNKS * (CHUNK // BLOCK)
    num_blocks = num_chunks * (CHUNK // BLOCK)
    blocks = tl.arange(0, BLOCKS)
    block_at = row * num_blocks + blocks
    is_block = blocks < num_blocks
    block_tops = tl.load(block_top_ptr + block_at, mask=is_block, other=float("-inf"))
    lowest = tl.full([], NO_WEIGHT, tl.float32)
    if min_p > 0.0:
        lowest = tl.maximum(tl.log(tl.minimum(min_p, 1.0)), lowest)
    floor = order(top + lowest * temperature)
    bound = floor
    if cuts_k:
        bound = count_bound(block_tops, top_k, lowest, top, temperature)
    elif min_p <= 0.0:
        chunk_at = row * num_chunks + blocks // (CHUNK // BLOCK)
        chunk_tops = tl.load(chunk_top_ptr + chunk_at, mask=is_block, other=float("-inf"))
        block_sums = tl.load(block_sum_ptr + block_at, mask=is_block, other=0.0)
        scales = tl.exp((chunk_tops - top) / temperature)
        block_sums = tl.where(chunk_tops > float("-inf"), block_sums * scales, 0.0)
        spare = (1.0 - top_p) * 0.99 * total  # less than 1 - top_p, for rounding
        bound = mass_bound(block_sums, spare, lowest, top, temperature, BLOCK)

    list_ptr += row * num_blocks
    num_listed = list_blocks(block_tops, bound, list_ptr, BLOCKS)
    source_ptr = kept_ptr + row.to(tl.int64) * MAX_KEPT
    kept_token_ptr += row.to(tl.int64) * MAX_KEPT
    num_kept = gather_kept(
        row_ptr,
        vocab,
        bound,
        list_ptr,
        num_listed,
        source_ptr,
        kept_token_ptr,
        CHUNK,
        BLOCK,
        MAX_KEPT,
    )
    gathered = num_kept <= MAX_KEPT
    if not gathered:
        source_ptr = row_ptr
        num_kept = vocab

    # The exact thresholds.
    if cuts_k:
        goal = top_k.to(tl.float32)
        floor = highest_floor(source_ptr, num_kept, bound, top, goal, temperature, False, CHUNK)
    if top_p < 1.0:
        goal = top_p * total
        if cuts_k | (min_p > 0.0):
            goal = top_p * mass_above(source_ptr, num_kept, floor, top, temperature, CHUNK)
        lowest_key = tl.maximum(floor, bound)
        floor = highest_floor(source_ptr, num_kept, lowest_key, top, goal, temperature, True, CHUNK)

    chosen = draw(source_ptr, num_kept, floor, top, uniform, temperature, CHUNK)
    if gathered:
        chosen = tl.load(kept_token_ptr + chosen)
    tl.store(out_ptr + row, chosen.to(tl.int64))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """The next token of every row: [num_rows] int64.

    logits: [num_rows, vocab] fp32, penalties applied, any stride over rows. temperature, top_p,
    min_p: [num_rows] fp32; top_k, seeds, positions: [num_rows] int64. A temperature below
    GREEDY_TEMPERATURE chooses the likeliest token, the first of several; top_k 0, top_p 1 and
    min_p 0 keep every token. A row of NaN yields some token.
    """
    num_rows, vocab = logits.shape
    device = logits.device
    num_chunks = cdiv(vocab, CHUNK)
    out = torch.empty(num_rows, dtype=torch.int64, device=device)
    tops = torch.empty(num_rows, num_chunks, dtype=torch.float32, device=device)
    tokens = torch.empty(num_rows, num_chunks, dtype=torch.int32, device=device)
    sums = torch.empty_like(tops)
    num_blocks = num_chunks * (CHUNK // BLOCK)
    block_tops, block_sums = torch.empty(
        2, num_rows, num_blocks, dtype=torch.float32, device=device
    )
    listed = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=device)
    kept = torch.empty(num_rows, MAX_KEPT, dtype=torch.float32, device=device)
    kept_tokens = torch.empty(num_rows, MAX_KEPT, dtype=torch.int32, device=device)
    block_stats_kernel[(num_rows, num_chunks)](
        logits,
        temperature,
        tops,
        tokens,
        sums,
        block_tops,
        block_sums,
        vocab,
        logits.stride(0),
        GREEDY_TEMPERATURE=GREEDY_TEMPERATURE,
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        num_warps=4,
    )
    sample_kernel[(num_rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        tops,
        tokens,
        sums,
        block_tops,
        block_sums,
        listed,
        kept,
        kept_tokens,
        out,
        vocab,
        logits.stride(0),
        num_chunks,
        GREEDY_TEMPERATURE=GREEDY_TEMPERATURE,
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        MAX_KEPT=MAX_KEPT,
        BLOCK_CHUNKS=next_power_of_2(num_chunks),
        num_warps=8,
        maxnreg=128,  # so that two programs fit a multiprocessor
    )
    return out

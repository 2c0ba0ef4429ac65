"""From logits to tokens without asking the host: greedy, or filtered and drawn.

The logits are read once for statistics of their blocks (`block_stats_kernel`). From these, one
program a row (`sample_kernel`) knows a bound that every kept token's logit reaches, gathers the
few tokens above it in order, and finds the exact thresholds of top-k and top-p among them by
bisection over the numbers' bits. What is kept and drawn is what `inferx_kernels.sampling` defines.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inferx_kernels.triton.sizes import cdiv, next_power_of_2

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
    x = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf"))
    x = tl.where(x == x, x, float("-inf"))  # NaN is never chosen
    top = tl.max(x, 0)
    at = row * num_chunks + chunk
    tl.store(chunk_top_ptr + at, top)
    tl.store(chunk_token_ptr + at, tl.min(tl.where(x == top, token, vocab - 1), 0))
    temperature = tl.load(temperature_ptr + row)
    if temperature >= GREEDY_TEMPERATURE:
        scaled = (x - top) / temperature
        weights = tl.where(x > float("-inf"), tl.exp(scaled), 0.0)
        tl.store(chunk_sum_ptr + at, tl.sum(weights, 0))
        blocks = tl.max(tl.reshape(x, [CHUNK // BLOCK, BLOCK]), 1)
        place = at * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK)
        tl.store(block_top_ptr + place, blocks)


@triton.jit
def order(x):
    """fp32 numbers to int32 ones of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def midpoint(low, high):
    """The mean, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


@triton.jit
def kept_weights(x, keys, floor, top, temperature):
    """exp((x - top) / temperature) of numbers whose key is at least `floor`, else 0."""
    weights = tl.exp((x - top) / temperature)
    return tl.where((keys >= floor) & (x > float("-inf")), weights, 0.0)


@triton.jit
def first_above(weights, places, before, target):
    """The first place at which before + the running sum exceeds target, or a large number.

    Where rounding leaves the last sum at the target, the last place of positive weight.
    """
    running = before + tl.cumsum(weights, 0)
    return tl.min(tl.where((running > target) & (weights > 0), places, 2147483647), 0)


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
    block_top_ptr,  # of block_stats_kernel
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
    places = tl.arange(0, CHUNK)
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
        token = chunk * CHUNK + places
        x = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf"))
        x = tl.where(x == x, x, float("-inf"))
        weights = kept_weights(x, order(x), -2147483648, top, temperature)
        chosen = first_above(weights, token, before, target)
        chosen = tl.minimum(chosen, tl.max(tl.where(weights > 0, token, 0), 0))
        tl.store(out_ptr + row, chosen.to(tl.int64))
        return

    # A bound that every kept token reaches.
    highest = order(top)
    floor = order(tl.full([], float("-inf"), tl.float32))
    if min_p > 0.0:
        floor = order(top + tl.log(min_p) * temperature)
        floor = tl.minimum(floor, highest)
    bound = floor
    num_blocks = num_chunks * (CHUNK // BLOCK)
    if cuts_k & (top_k <= num_blocks):
        # The k-th largest of the blocks' largest.
        low = floor
        high = highest
        while low < high:
            middle = midpoint(low, high)
            count = 0
            for first in range(0, num_blocks, CHUNK):
                inside = first + places < num_blocks
                x = tl.load(
                    block_top_ptr + row * num_blocks + first + places,
                    mask=inside,
                    other=float("-inf"),
                )
                count += tl.sum((inside & (order(x) >= middle)).to(tl.int32), 0)
            if count >= top_k:
                low = middle
            else:
                high = middle - 1
        bound = low
    elif (not cuts_k) & (min_p <= 0.0):
        # All tokens below it hold less than 1 - top_p together.
        bound = order(top + tl.log((1.0 - top_p) * 0.99 * total / vocab) * temperature)
        bound = tl.minimum(bound, highest)

    # Gather what reaches it, in order.
    num_kept = 0
    for chunk in range(0, num_chunks):
        if order(tl.load(chunk_top_ptr + row * num_chunks + chunk)) >= bound:
            token = chunk * CHUNK + places
            x = tl.load(row_ptr + token, mask=token < vocab, other=float("-inf"))
            x = tl.where(x == x, x, float("-inf"))
            keep = (order(x) >= bound) & (token < vocab)
            place = num_kept + tl.cumsum(keep.to(tl.int32), 0) - 1
            keep_here = keep & (place < MAX_KEPT)
            tl.store(kept_ptr + row * MAX_KEPT + place, x, mask=keep_here)
            tl.store(kept_token_ptr + row * MAX_KEPT + place, token, mask=keep_here)
            num_kept += tl.sum(keep.to(tl.int32), 0)
    tl.debug_barrier()
    gathered = num_kept <= MAX_KEPT
    source_ptr = kept_ptr + row.to(tl.int64) * MAX_KEPT
    if not gathered:
        source_ptr = row_ptr
        num_kept = vocab

    # The exact thresholds.
    if cuts_k:
        low = bound
        high = highest
        while low < high:
            middle = midpoint(low, high)
            count = 0
            for first in range(0, num_kept, CHUNK):
                inside = first + places < num_kept
                x = tl.load(source_ptr + first + places, mask=inside, other=float("-inf"))
                x = tl.where(x == x, x, float("-inf"))
                count += tl.sum((inside & (order(x) >= middle)).to(tl.int32), 0)
            if count >= top_k:
                low = middle
            else:
                high = middle - 1
        floor = tl.maximum(floor, low)
    if top_p < 1.0:
        goal = top_p * total
        if cuts_k | (min_p > 0.0):
            mass = 0.0
            for first in range(0, num_kept, CHUNK):
                inside = first + places < num_kept
                x = tl.load(source_ptr + first + places, mask=inside, other=float("-inf"))
                x = tl.where(x == x, x, float("-inf"))
                mass += tl.sum(kept_weights(x, order(x), floor, top, temperature), 0)
            goal = top_p * mass
        low = tl.maximum(floor, bound)
        high = highest
        while low < high:
            middle = midpoint(low, high)
            mass = 0.0
            for first in range(0, num_kept, CHUNK):
                inside = first + places < num_kept
                x = tl.load(source_ptr + first + places, mask=inside, other=float("-inf"))
                x = tl.where(x == x, x, float("-inf"))
                mass += tl.sum(kept_weights(x, order(x), middle, top, temperature), 0)
            if mass >= goal:
                low = middle
            else:
                high = middle - 1
        floor = tl.maximum(floor, low)

    # The draw.
    mass = 0.0
    for first in range(0, num_kept, CHUNK):
        inside = first + places < num_kept
        x = tl.load(source_ptr + first + places, mask=inside, other=float("-inf"))
        x = tl.where(x == x, x, float("-inf"))
        mass += tl.sum(kept_weights(x, order(x), floor, top, temperature), 0)
    target = mass * uniform
    before = 0.0
    chosen = 2147483647
    last = 0
    for first in range(0, num_kept, CHUNK):
        inside = first + places < num_kept
        x = tl.load(source_ptr + first + places, mask=inside, other=float("-inf"))
        x = tl.where(x == x, x, float("-inf"))
        weights = kept_weights(x, order(x), floor, top, temperature)
        chosen = tl.minimum(chosen, first_above(weights, first + places, before, target))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, first + places, 0), 0))
        before += tl.sum(weights, 0)
    chosen = tl.minimum(chosen, last)
    if gathered:
        chosen = tl.load(kept_token_ptr + row * MAX_KEPT + chosen)
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
    blocks = torch.empty(
        num_rows, num_chunks * (CHUNK // BLOCK), dtype=torch.float32, device=device
    )
    kept = torch.empty(num_rows, MAX_KEPT, dtype=torch.float32, device=device)
    kept_tokens = torch.empty(num_rows, MAX_KEPT, dtype=torch.int32, device=device)
    block_stats_kernel[(num_rows, num_chunks)](
        logits,
        temperature,
        tops,
        tokens,
        sums,
        blocks,
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
        blocks,
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
    )
    return out

"""Which tokens of a row can be drawn: a bound that all of them reach, and the exact threshold.

Logits are compared as integers of the same order, so that a threshold is found exactly, ties and
all. A weight is exp((logit - the row's largest) / temperature).
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_WEIGHT = tl.constexpr(-104.0)  # exp() of less is 0 in fp32
_HALVINGS = tl.constexpr(14)


@triton.jit
def order(x):
    """fp32 numbers to int32 ones of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def load_logits(ptr, places, end):
    """Logits at places below the end, -inf elsewhere and for NaN, which is never chosen."""
    x = tl.load(ptr + places, mask=places < end, other=float("-inf"))
    return tl.where(x == x, x, float("-inf")) + 0.0  # -0 is 0


@triton.jit
def kept_weights(x, floor, top, temperature):
    """The weights of logits that reach `floor`, else 0."""
    weights = tl.exp((x - top) / temperature)
    return tl.where((order(x) >= floor) & (x > float("-inf")), weights, 0.0)


@triton.jit
def count_bound(block_tops, top_k, lowest, top, temperature):
    """What the top_k likeliest tokens reach: as many blocks' largest logits do.

    lowest: where to begin, as (logit - top) / temperature.
    """
    low = lowest
    high = 0.0
    for _ in tl.static_range(_HALVINGS):
        middle = (low + high) * 0.5
        reached = order(block_tops) >= order(top + middle * temperature)
        if tl.sum(reached.to(tl.int32), 0) >= top_k:
            low = middle
        else:
            high = middle
    return order(top + low * temperature)


@triton.jit
def mass_bound(block_sums, spare, lowest, top, temperature, BLOCK: tl.constexpr):
    """What all tokens reach but some that hold at most `spare` of weight together.

    block_sums: the weight of each block's BLOCK tokens, of which those below a weight w hold at
    most BLOCK * w. lowest: see count_bound.
    """
    low = lowest
    high = 0.0
    for _ in tl.static_range(_HALVINGS):
        middle = (low + high) * 0.5
        below = tl.minimum(block_sums, BLOCK * tl.exp(middle))
        if tl.sum(below, 0) <= spare:
            low = middle
        else:
            high = middle
    return order(top + low * temperature)


@triton.jit
def list_blocks(block_tops, bound, list_ptr, BLOCKS: tl.constexpr):
    """Writes the numbers of the blocks with a token that reaches the bound; returns how many."""
    blocks = tl.arange(0, BLOCKS)
    keep = (order(block_tops) >= bound).to(tl.int32)
    tl.store(list_ptr + tl.cumsum(keep, 0) - 1, blocks, mask=keep > 0)
    tl.debug_barrier()  # the whole program has written before any of it reads
    return tl.sum(keep, 0)


@triton.jit
def gather_kept(
    row_ptr,
    vocab,
    bound,
    list_ptr,
    num_listed,
    kept_ptr,
    kept_token_ptr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_KEPT: tl.constexpr,
):
    """Writes the listed blocks' tokens that reach the bound, in order, as far as there is room;
    returns how many there are."""
    places = tl.arange(0, CHUNK)
    num_kept = 0
    for first in range(0, num_listed, CHUNK // BLOCK):
        listed = first + places // BLOCK
        is_listed = listed < num_listed
        token = tl.load(list_ptr + listed, mask=is_listed, other=0) * BLOCK + places % BLOCK
        x = load_logits(row_ptr, token, tl.where(is_listed, vocab, 0))
        keep = (order(x) >= bound) & is_listed
        ones = keep.to(tl.int32)
        place = num_kept + tl.cumsum(ones, 0) - 1
        keep = keep & (place < MAX_KEPT)
        tl.store(kept_ptr + place, x, mask=keep)
        tl.store(kept_token_ptr + place, token, mask=keep)
        num_kept += tl.sum(ones, 0)
    tl.debug_barrier()
    return num_kept


@triton.jit
def mass_above(source_ptr, num_kept, floor, top, temperature, CHUNK: tl.constexpr):
    places = tl.arange(0, CHUNK)
    sums = tl.zeros([CHUNK], tl.float32)
    for first in range(0, num_kept, CHUNK):
        x = load_logits(source_ptr, first + places, num_kept)
        sums += kept_weights(x, floor, top, temperature)
    return tl.sum(sums, 0)


@triton.jit
def highest_floor(
    source_ptr,
    num_kept,
    lowest,
    top,
    goal,
    temperature,
    WEIGHED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The highest threshold, not below `lowest`, that tokens of `goal` weight together reach, or
    so many tokens where not WEIGHED. Each pass goes through the tokens and leaves a quarter."""
    places = tl.arange(0, CHUNK)
    low = lowest
    high = order(top)
    while low < high:
        span = high.to(tl.int64) - low
        first_cut = (low + (span + 3) // 4).to(tl.int32)
        second_cut = (low + (2 * span + 3) // 4).to(tl.int32)
        third_cut = (low + (3 * span + 3) // 4).to(tl.int32)
        firsts = tl.zeros([CHUNK], tl.float32)
        seconds = tl.zeros([CHUNK], tl.float32)
        thirds = tl.zeros([CHUNK], tl.float32)
        for first in range(0, num_kept, CHUNK):
            x = load_logits(source_ptr, first + places, num_kept)
            amounts = kept_weights(x, first_cut, top, temperature)
            if not WEIGHED:
                amounts = (order(x) >= first_cut).to(tl.float32)
            firsts += amounts
            seconds += tl.where(order(x) >= second_cut, amounts, 0.0)
            thirds += tl.where(order(x) >= third_cut, amounts, 0.0)
        at_first = tl.sum(firsts, 0)
        at_second = tl.sum(seconds, 0)
        at_third = tl.sum(thirds, 0)
        if at_third >= goal:
            low = third_cut
        elif at_second >= goal:
            low = second_cut
            high = third_cut - 1
        elif at_first >= goal:
            low = first_cut
            high = second_cut - 1
        else:
            high = first_cut - 1
        is_met = (at_first == goal) | (at_second == goal) | (at_third == goal)
        if is_met & (not WEIGHED):
            high = low  # so many tokens exactly: higher thresholds keep the same, or too few
    return low


@triton.jit
def first_above(weights, places, before, target):
    """The first place at which before + the running sum exceeds target; a large number where none
    does, as where rounding leaves the last sum at the target."""
    running = before + tl.cumsum(weights, 0)
    return tl.min(tl.where((running > target) & (weights > 0), places, 2147483647), 0)


@triton.jit
def draw(source_ptr, num_kept, floor, top, uniform, temperature, CHUNK: tl.constexpr):
    """The place at which the running weight of what reaches `floor` exceeds its share `uniform`."""
    places = tl.arange(0, CHUNK)
    target = mass_above(source_ptr, num_kept, floor, top, temperature, CHUNK) * uniform
    before = 0.0
    chosen = 2147483647
    last = 0
    for first in range(0, num_kept, CHUNK):
        x = load_logits(source_ptr, first + places, num_kept)
        weights = kept_weights(x, floor, top, temperature)
        chosen = tl.minimum(chosen, first_above(weights, first + places, before, target))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, first + places, 0), 0))
        before += tl.sum(weights, 0)
    return tl.minimum(chosen, last)

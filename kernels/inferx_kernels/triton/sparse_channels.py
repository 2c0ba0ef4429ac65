"""Which input channels a sparse product reads: found, listed and counted on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def inverse_rms(
    x_ptr, eps, M: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr
):
    """Of each token; ones without NORM."""
    channels = tl.arange(0, BLOCK)
    factors = ()
    for m in tl.static_range(M):
        factor = 1.0
        if NORM:
            x = tl.load(x_ptr + m * K + channels, mask=channels < K, other=0.0).to(tl.float32)
            factor = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        factors = factors + (factor,)
    return factors


@triton.jit
def load_channels(
    x_ptr,
    norm_ptr,
    column_norms_ptr,
    tau,
    rms,
    channels,
    ok,
    NORM: tl.constexpr,
    AWARE: tl.constexpr,
):
    """A token's activations of some channels, in fp32, and which of them it keeps."""
    x = tl.load(x_ptr + channels, mask=ok, other=0.0).to(tl.float32)
    if NORM:
        x *= rms * tl.load(norm_ptr + channels, mask=ok, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)  # as the norm's own kernel stores it
    score = tl.abs(x)
    if AWARE:
        score *= tl.load(column_norms_ptr + channels, mask=ok, other=0.0)
    return x, ok & ~(score <= tau)  # what is not a number is kept


@triton.jit
def count_channels(
    x_ptr,
    norm_ptr,
    column_norms_ptr,
    tau,
    rms,
    counts_ptr,  # [M, 4]
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    AWARE: tl.constexpr,
):
    kept = (tl.zeros([BLOCK], tl.float32),) * M
    lost = (tl.zeros([BLOCK], tl.float32),) * M
    energy = (tl.zeros([BLOCK], tl.float32),) * M
    union = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, K, BLOCK):
        channels = k + tl.arange(0, BLOCK)
        ok = channels < K
        some = channels < 0
        more_kept = ()
        more_lost = ()
        more_energy = ()
        for m in tl.static_range(M):
            x, keep = load_channels(
                x_ptr + m * K, norm_ptr, column_norms_ptr, tau, rms[m], channels, ok, NORM, AWARE
            )
            some = some | keep
            more_kept = more_kept + (kept[m] + keep.to(tl.float32),)
            more_lost = more_lost + (lost[m] + tl.where(keep, 0.0, x * x),)
            more_energy = more_energy + (energy[m] + x * x,)
        union += some.to(tl.float32)
        kept = more_kept
        lost = more_lost
        energy = more_energy
    for m in tl.static_range(M):
        tl.store(counts_ptr + m * 4, tl.sum(kept[m], 0))
        tl.store(counts_ptr + m * 4 + 1, tl.sum(union, 0))
        tl.store(counts_ptr + m * 4 + 2, tl.sum(lost[m], 0))
        tl.store(counts_ptr + m * 4 + 3, tl.sum(energy[m], 0))


@triton.jit
def list_channels(
    x_ptr,
    norm_ptr,
    column_norms_ptr,
    tau,
    rms,
    list_ptr,  # [LENGTH] int64: a channel's place in the weight above, the first token's x below
    values_ptr,  # [M - 1, LENGTH] fp32: the other tokens' x
    origin,
    first,
    end,
    step,  # a channel's distance from the next in the weight, in 16 bytes
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PAD: tl.constexpr,
    LENGTH: tl.constexpr,
    NORM: tl.constexpr,
    AWARE: tl.constexpr,
):
    """Lists the channels of [first, end) that some token keeps; returns how many.

    Places count from the origin, up to BLOCK channels before the end. PAD entries behind the list
    have x = 0 and name the origin, so that reading on is harmless.
    """
    inner = tl.arange(0, BLOCK)
    channels = origin + inner
    ok = (channels >= first) & (channels < end)
    some = inner < 0
    xs = ()
    for m in tl.static_range(M):
        x, keep = load_channels(
            x_ptr + m * K, norm_ptr, column_norms_ptr, tau, rms[m], channels, ok, NORM, AWARE
        )
        some = some | keep
        xs = xs + (tl.where(keep, x, 0.0),)
    ones = some.to(tl.int32)
    places = tl.cumsum(ones, 0) - ones
    count = tl.sum(ones, 0)
    bits = xs[0].to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(list_ptr + places, (inner * step).to(tl.int64) << 32 | bits, mask=some)
    behind = count + tl.arange(0, PAD)
    tl.store(list_ptr + behind, tl.zeros([PAD], tl.int64))
    for m in tl.static_range(1, M):
        tl.store(values_ptr + (m - 1) * LENGTH + places, xs[m], mask=some)
        tl.store(values_ptr + (m - 1) * LENGTH + behind, tl.zeros([PAD], tl.float32))
    tl.debug_barrier()  # the whole program has written before any of it reads
    return count


@triton.jit
def load_entries(list_ptr, values_ptr, places, M: tl.constexpr, LENGTH: tl.constexpr):
    """Where the channels' weights lie, in 16 bytes, and their x of each token."""
    entries = tl.load(list_ptr + places)
    xs = ((entries & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True),)
    for m in tl.static_range(1, M):
        xs = xs + (tl.load(values_ptr + (m - 1) * LENGTH + places),)
    return (entries >> 32).to(tl.int32), xs

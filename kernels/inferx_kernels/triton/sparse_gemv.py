"""Matrix-vector products of few tokens that read only the channels that matter.

A weight is stored by input channel, [K, N], so that a channel that no token needs leaves whole
memory lines unread. A program owns BLOCK_N outputs and one part of the channels. It begins with the
part's first SLOTS * ROWS channels, kept or not: these can be asked for before the kernel before has
ended, and arrive while the program finds out which of the others some token keeps. It writes the
list of those, in ascending order, to scratch memory that only it reads, and goes through the list,
SLOTS * ROWS channels at a time, the next ones' loads under way while it adds. So no kernel has to
make lists before, and what is skipped costs no instructions. The last program to finish a tile adds
the parts in a fixed order: the result does not depend on timing.

The idea, thresholds on the inputs of every product, is TEAL's (arXiv 2408.14690), whose kernel
predicates its loads instead: channels that are skipped cost it their instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inferx_kernels.triton.device import INTERPRETED, launch_next, wait_previous
from inferx_kernels.triton.sparse_channels import (
    count_channels,
    inverse_rms,
    list_channels,
    load_channels,
    load_entries,
)


@triton.jit
def unpack(words, PACK: tl.constexpr):
    """The PACK numbers of each int32, lowest first, in fp32: 2 of bf16 or 4 of e4m3.

    Weights stay packed in registers: the compiler keeps loose bytes in a register each.
    """
    if PACK == 2:
        low = (words << 16).to(tl.float32, bitcast=True)
        high = (words & -65536).to(tl.float32, bitcast=True)
        numbers = (low, high)
    elif INTERPRETED:
        numbers = ()
        for j in tl.static_range(PACK):
            byte = ((words >> (8 * j)) & 0xFF).to(tl.int8)
            numbers = numbers + (byte.to(tl.float8e4nv, bitcast=True).to(tl.float32),)
    else:
        numbers = tl.inline_asm_elementwise(
            """{
            .reg .b16 lo, hi, a, b, c, d;
            .reg .b32 p, q;
            mov.b32 {lo, hi}, $4;
            cvt.rn.f16x2.e4m3x2 p, lo;
            cvt.rn.f16x2.e4m3x2 q, hi;
            mov.b32 {a, b}, p;
            mov.b32 {c, d}, q;
            cvt.f32.f16 $0, a;
            cvt.f32.f16 $1, b;
            cvt.f32.f16 $2, c;
            cvt.f32.f16 $3, d;
            }""",
            "=f,=f,=f,=f,r",
            [words],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    return numbers


@triton.jit
def over_slots(sums, PACK: tl.constexpr, BLOCK_N: tl.constexpr):
    """PACK tensors of [SLOTS, BLOCK_N / PACK], added over slots: [BLOCK_N]."""
    if PACK == 2:
        y = tl.join(tl.sum(sums[0], 0), tl.sum(sums[1], 0))
    else:
        even = tl.join(tl.sum(sums[0], 0), tl.sum(sums[2], 0))
        odd = tl.join(tl.sum(sums[1], 0), tl.sum(sums[3], 0))
        y = tl.join(even, odd)
    return tl.reshape(y, [BLOCK_N])


@triton.jit
def load_weights(w_ptrs, offsets, col_ok, EVEN: tl.constexpr):
    """Weights are read once a step, and leave the cache first: lists and parts stay in it."""
    pointers = w_ptrs + offsets[:, None].to(tl.int64) * 4
    if EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=col_ok[None, :], other=0, eviction_policy="evict_first")


@triton.jit
def add_products(acc, ws, xs, PACK: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr):
    """acc: for each token, PACK tensors of [SLOTS, BLOCK_N / PACK]."""
    sums = ()
    for m in tl.static_range(M):
        total = acc[m]
        for row in tl.static_range(ROWS):
            numbers = unpack(ws[row], PACK)
            x = xs[row][m][:, None]
            more = ()
            for j in tl.static_range(PACK):
                more = more + (total[j] + numbers[j] * x,)
            total = more
        sums = sums + (total,)
    return sums


@triton.jit
def sparse_gemv_kernel(
    x_ptr,  # [M, K]
    norm_ptr,  # [K]: RMSNorm's weight, where NORM
    threshold_ptr,  # [1] fp32
    column_norms_ptr,  # [K] fp32, where AWARE
    w_ptr,  # [K, N / PACK] int32
    w_scale_ptr,  # [N] fp32, where SCALED
    bias_ptr,  # [N], where BIAS
    residual_ptr,  # [M, N], where RESIDUAL
    y_ptr,  # [M, N], or [M, N / 2] where GATED
    list_ptr,  # [tiles, SPLIT_K, LENGTH] int64
    values_ptr,  # [tiles, SPLIT_K, M - 1, LENGTH] fp32
    part_ptr,  # [tiles, SPLIT_K, M, BLOCK_N] fp32, where SPLIT_K > 1
    arrivals_ptr,  # [tiles] int32 zeros, and zeros again afterwards
    counts_ptr,  # [slots, >= M, 4] fp32, where COUNT
    count_slot_ptr,  # [1] int32, where COUNT
    counts_stride,
    N,
    eps,
    M: tl.constexpr,
    K: tl.constexpr,
    K_PART: tl.constexpr,
    PACK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SLOTS: tl.constexpr,  # channels that the program's threads cover with a load each
    ROWS: tl.constexpr,  # loads of each thread that are under way
    SPLIT_K: tl.constexpr,
    BLOCK_PART: tl.constexpr,  # at least K_PART
    BLOCK_K: tl.constexpr,  # at least K
    PAD: tl.constexpr,  # at least SLOTS * ROWS
    LENGTH: tl.constexpr,  # K_PART + PAD or more
    NORM: tl.constexpr,
    AWARE: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,  # columns are gate, up, gate, up, ...
    COUNT: tl.constexpr,  # one tile more, whose first program only counts
    EVEN: tl.constexpr,  # BLOCK_N divides N
    PDL: tl.constexpr,
):
    tile = tl.program_id(0)
    part = tl.program_id(1)
    if COUNT:
        is_counting = tile == tl.num_programs(0) - 1
        if is_counting:
            launch_next(PDL)
            wait_previous(PDL)
            if part == 0:
                count_channels(
                    x_ptr,
                    norm_ptr,
                    column_norms_ptr,
                    tl.load(threshold_ptr),
                    inverse_rms(x_ptr, eps, M, K, BLOCK_K, NORM),
                    counts_ptr + tl.load(count_slot_ptr).to(tl.int64) * counts_stride,
                    M,
                    K,
                    1024,
                    NORM,
                    AWARE,
                )
            return
    first = part * K_PART
    end = tl.minimum(first + K_PART, K)
    step = N // (PACK * 4)
    words = tile * (BLOCK_N // PACK) + tl.arange(0, BLOCK_N // PACK)
    word_ok = words < N // PACK
    w_ptrs = w_ptr + first.to(tl.int64) * (N // PACK) + words[None, :]
    slots = tl.arange(0, SLOTS)
    HEAD: tl.constexpr = SLOTS * ROWS
    ws = ()
    for row in tl.static_range(ROWS):
        inner = tl.minimum(row * SLOTS + slots, end - first - 1)
        ws = ws + (load_weights(w_ptrs, inner * step, word_ok, EVEN),)
    launch_next(PDL)
    tau = tl.load(threshold_ptr)
    wait_previous(PDL)

    rms = inverse_rms(x_ptr, eps, M, K, BLOCK_K, NORM)
    xs = ()
    for row in tl.static_range(ROWS):
        channels = first + row * SLOTS + slots
        tokens = ()
        for m in tl.static_range(M):
            x, keep = load_channels(
                x_ptr + m * K,
                norm_ptr,
                column_norms_ptr,
                tau,
                rms[m],
                channels,
                channels < end,
                NORM,
                AWARE,
            )
            tokens = tokens + (tl.where(keep, x, 0.0),)
        xs = xs + (tokens,)
    program = (tile * SPLIT_K + part).to(tl.int64)
    list_ptr += program * LENGTH
    values_ptr += program * ((M - 1) * LENGTH)
    count = list_channels(
        x_ptr,
        norm_ptr,
        column_norms_ptr,
        tau,
        rms,
        list_ptr,
        values_ptr,
        first,
        first + HEAD,
        end,
        step,
        M,
        K,
        BLOCK_PART,
        PAD,
        LENGTH,
        NORM,
        AWARE,
    )

    acc = ((tl.zeros([SLOTS, BLOCK_N // PACK], tl.float32),) * PACK,) * M
    next_offsets = ()
    next_xs = ()
    for row in tl.static_range(ROWS):
        offsets, x = load_entries(list_ptr, values_ptr, row * SLOTS + slots, M, LENGTH)
        next_offsets = next_offsets + (offsets,)
        next_xs = next_xs + (x,)
    for done in tl.range(0, HEAD + count, HEAD):
        next_ws = ()
        for row in tl.static_range(ROWS):
            next_ws = next_ws + (load_weights(w_ptrs, next_offsets[row], word_ok, EVEN),)
        ahead = tl.minimum(done + HEAD, count)
        later_offsets = ()
        later_xs = ()
        for row in tl.static_range(ROWS):
            places = ahead + row * SLOTS + slots
            offsets, x = load_entries(list_ptr, values_ptr, places, M, LENGTH)
            later_offsets = later_offsets + (offsets,)
            later_xs = later_xs + (x,)
        acc = add_products(acc, ws, xs, PACK, M, ROWS)
        ws = next_ws
        xs = next_xs
        next_offsets = later_offsets
        next_xs = later_xs

    ys = ()
    for m in tl.static_range(M):
        ys = ys + (over_slots(acc[m], PACK, BLOCK_N),)
    inner = tl.arange(0, BLOCK_N)
    if SPLIT_K > 1:
        for m in tl.static_range(M):
            tl.store(part_ptr + (program * M + m) * BLOCK_N + inner, ys[m])
        tl.debug_barrier()  # the whole program's parts are written before it counts as arrived
        arrived = tl.atomic_add(arrivals_ptr + tile, 1, sem="acq_rel")
        if arrived != SPLIT_K - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        program = (tile * SPLIT_K).to(tl.int64)
        totals = ()
        for m in tl.static_range(M):
            y = tl.zeros([BLOCK_N], tl.float32)
            for other in tl.static_range(SPLIT_K):
                place = ((program + other) * M + m) * BLOCK_N
                y += tl.load(part_ptr + place + inner, volatile=True)
            totals = totals + (y,)
        ys = totals

    columns = tile * BLOCK_N + inner
    ok = columns < N
    for m in tl.static_range(M):
        y = ys[m]
        if SCALED:
            y *= tl.load(w_scale_ptr + columns, mask=ok, other=0.0)
        if BIAS:
            y += tl.load(bias_ptr + columns, mask=ok, other=0.0).to(tl.float32)
        if GATED:
            gate, up = tl.split(tl.reshape(y, [BLOCK_N // 2, 2]))
            half = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            y = gate * tl.sigmoid(gate) * up
            out = y_ptr + m * (N // 2) + half
            tl.store(out, y.to(y_ptr.dtype.element_ty), mask=half < N // 2)
        else:
            if RESIDUAL:
                y += tl.load(residual_ptr + m * N + columns, mask=ok, other=0.0).to(tl.float32)
            tl.store(y_ptr + m * N + columns, y.to(y_ptr.dtype.element_ty), mask=ok)

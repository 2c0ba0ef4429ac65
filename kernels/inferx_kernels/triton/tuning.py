"""How kernels are launched: sizes that measured fastest on an H200 (ci/bench/RESULTS.md)."""

from __future__ import annotations

from typing import NamedTuple

from inferx_kernels.triton.sizes import cdiv, next_power_of_2

LARGEST_CHUNK = 4096  # keys that one program of decode attention goes through
MOST_CHUNKS = 32  # of a row that is split to fill the chip


class LinearConfig(NamedTuple):
    """How a decode linear is launched. block_n, block_k in elements."""

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    split_k: int = 1


class DecodeConfig(NamedTuple):
    """How decode attention is launched."""

    block_t: int  # keys a tile
    num_warps: int
    num_stages: int
    programs: int  # a multiprocessor
    maxnreg: int | None = None  # registers a thread, so that these programs fit side by side


class PrefillConfig(NamedTuple):
    """How prefill attention is launched."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    maxnreg: int | None = None


def gemv_config(features: int, width: int, itemsize: int) -> LinearConfig:
    if itemsize > 1:
        config = LinearConfig(8, 1024, 4)
    elif width > 8192:
        config = LinearConfig(4, 2048, 4)
    elif features >= 16_384:
        config = LinearConfig(8, 4096, 4)
    elif features > 4096:
        config = LinearConfig(16, 1024, 4)
    else:
        config = LinearConfig(8, 1024, 8)
    return config._replace(block_k=min(config.block_k, max(256, next_power_of_2(width))))


def skinny_config(num_tokens: int, features: int, width: int, itemsize: int) -> LinearConfig:
    split_k = 4 if width > 8192 and features < 8192 else 1
    if num_tokens > 32 and features >= 16_384:
        return LinearConfig(64, 128, 4, 5) if itemsize == 1 else LinearConfig(128, 64, 4, 6)
    return LinearConfig(64, 256 // itemsize, 4, 4 if itemsize == 1 else 5, split_k)


def silu_mul_tile(width: int, quantize: bool) -> tuple[int, int]:
    """Columns of a tile of the gated activation, and warps."""
    block = min(2048, max(256, next_power_of_2(width)))
    if not quantize:
        return block, 4
    # A whole row stays in registers
    return (block, 8) if width <= 8 * block else (2 * block, 16)


def decode_config(head_dim: int, page_itemsize: int) -> DecodeConfig:
    row = next_power_of_2(head_dim) * page_itemsize  # bytes
    if row <= 128:
        return DecodeConfig(64, 4, 3, 4, 128)
    if row <= 256:
        return DecodeConfig(32, 4, 3, 4, 128)
    return DecodeConfig(32, 4, 3, 2)


def decode_chunk(num_rows: int, num_kv_heads: int, max_model_len: int) -> int:
    """Tokens of a chunk, a multiple of 128.

    Few rows are split to fill the chip, though not finer than a row's chunks are combined quickly;
    many rows need no splitting, and combining costs them more than it brings. Results do not depend
    on a row's company within one size.
    """
    heads = num_rows * num_kv_heads
    if heads <= 32:
        fills_the_chip = 128 * next_power_of_2(cdiv(heads, 8))
        combines_quickly = next_power_of_2(max_model_len) // MOST_CHUNKS
        return min(512, max(fills_the_chip, combines_quickly))
    return 2048 if heads <= 128 else LARGEST_CHUNK


def prefill_config(head_dim: int, page_itemsize: int) -> PrefillConfig:
    if head_dim > 128:
        return PrefillConfig(64, 32, 4, 2)
    if page_itemsize == 1:
        return PrefillConfig(128, 128, 8, 2)
    return PrefillConfig(128, 64, 8, 2, 128)

"""How sparse products are launched: what measured fastest on an H200 (ci/bench/RESULTS.md)."""

from __future__ import annotations

from typing import NamedTuple

from inferx_kernels.triton.sizes import cdiv

_WARPS = 132 * 16  # of a product: four to a scheduler keep enough loads under way
_LEAST_BYTES = 55e6  # between down in fp8, 59 MB, which gains, and qkv in bf16, 50 MB, which loses
# Channels by bytes of a weight, below which listing them and adding parts outweighs reading them
_SHORTEST_PART = {1: 512, 2: 448}


class SparseConfig(NamedTuple):
    """block_n in elements; k_part: channels of a program; rows: loads of a thread at a time;
    maxnreg: registers of a thread, so that the programs fit side by side."""

    block_n: int
    k_part: int
    rows: int
    num_warps: int = 4
    maxnreg: int | None = None


def sparse_config(num_tokens: int, features: int, width: int, itemsize: int) -> SparseConfig:
    """Measured in steps, not alone: a product of few registers starts while the one before it still
    runs, which in fp8 is worth 10 us a layer."""
    is_wide, is_fp8 = features > 8192, itemsize == 1
    if num_tokens > 1:
        block_n, rows, num_warps, maxnreg = 512 if is_wide and not is_fp8 else 256, 4, 4, 128
    elif is_wide:
        block_n, rows, num_warps, maxnreg = (256, 6, 2, None) if is_fp8 else (512, 8, 4, None)
    else:
        block_n, rows, num_warps, maxnreg = 128, 8, 2, None
    programs = _WARPS // num_warps
    most_parts = max(1, width // _SHORTEST_PART[itemsize])
    parts = max(1, min(most_parts, programs // cdiv(features, block_n)))
    k_part = cdiv(cdiv(width, parts), 8) * 8
    return SparseConfig(block_n, k_part, rows, num_warps, maxnreg)


def pays(num_bytes: int) -> bool:
    """Whether skipping half of the channels makes a token's product faster than the dense one, by
    the bytes of its weight: half of them then take longer than what the sparse product costs
    besides."""
    return num_bytes >= _LEAST_BYTES

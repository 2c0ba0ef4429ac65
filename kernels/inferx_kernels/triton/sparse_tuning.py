"""How sparse products are launched: what measured fastest on an H200 (ci/bench/RESULTS.md)."""

from __future__ import annotations

from typing import NamedTuple

from inferx_kernels.triton.sizes import cdiv

_PROGRAMS = 448  # of a product: they run side by side, and keep enough loads under way
_SHORTEST_PART = 128  # channels, below which listing them costs more than reading them


class SparseConfig(NamedTuple):
    """block_n in elements; k_part: channels of a program; rows: loads of a thread at a time."""

    block_n: int
    k_part: int
    rows: int
    num_warps: int = 4


def sparse_config(num_tokens: int, features: int, width: int, itemsize: int) -> SparseConfig:
    block_n = 256
    parts = max(1, _PROGRAMS // cdiv(features, block_n))
    k_part = max(_SHORTEST_PART, cdiv(cdiv(width, parts), 32) * 32)
    rows = 8 if itemsize * num_tokens == 2 else 4
    return SparseConfig(block_n, k_part, rows)

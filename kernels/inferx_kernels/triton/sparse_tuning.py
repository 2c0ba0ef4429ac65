"""How sparse products are launched: what measured fastest on an H200 (ci/bench/RESULTS.md)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from inferx_kernels.triton.sizes import cdiv

_PROGRAMS = 448  # of a product: they run side by side, and keep enough loads under way
_LEAST_BYTES = 40e6  # between qkv of 50 MB, 1.08 times as fast, and o of 34 MB, 0.89 times
_SHORTEST_PART = 512  # channels, below which listing them and adding parts outweighs reading them


class SparseConfig(NamedTuple):
    """block_n in elements; k_part: channels of a program; rows: loads of a thread at a time."""

    block_n: int
    k_part: int
    rows: int
    num_warps: int = 4


def sparse_config(num_tokens: int, features: int, width: int, itemsize: int) -> SparseConfig:
    is_large = features > 8192 or width > 8192
    block_n = 256
    if num_tokens == 1 and not is_large:
        block_n = 128
    elif num_tokens == 1 and itemsize == 2 and features > 8192:
        block_n = 512
    most_parts = max(1, width // _SHORTEST_PART)
    parts = max(1, min(most_parts, _PROGRAMS // cdiv(features, block_n)))
    k_part = cdiv(cdiv(width, parts), 32) * 32
    if num_tokens == 1:
        return SparseConfig(block_n, k_part, 8 if is_large else 4)
    return SparseConfig(block_n, k_part, 4 if num_tokens == 2 else 2)


def pays(weight: Tensor) -> bool:
    """Whether skipping half of the channels makes a token's product faster than the dense one:
    half of its bytes then take longer than what the sparse product costs beside its bytes."""
    return weight.nbytes >= _LEAST_BYTES

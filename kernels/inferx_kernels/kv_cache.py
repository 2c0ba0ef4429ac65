"""Writing to and copying KV pages.

A page holds `block_size` tokens of one layer: pages are
[num_blocks, block_size, num_kv_heads, head_dim], contiguous, one tensor for K and one for V, of
the model's type or e4m3 (the values themselves: scale 1).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from inferx_kernels.fp8 import E4M3, movable, to_e4m3


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
    """Stores every token's K and V in its place; in e4m3 pages to the nearest, saturating.

    k, v: [num_tokens, num_kv_heads, head_dim], any strides over tokens; slot_mapping:
    [num_tokens] int64, page * block_size + offset, without repetition.
    """
    for new, pages in ((k, k_pages), (v, v_pages)):
        if pages.dtype is E4M3:
            new = to_e4m3(new)
        movable(pages).flatten(0, 1).index_copy_(0, slot_mapping, movable(new))


def copy_pages(pages: Iterable[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Copies page sources[i] to page targets[i] in each tensor of `pages`.

    sources, targets: [num_copies] int64. Every source is read before any target is written.
    """
    for tensor in pages:
        tensor = movable(tensor)
        tensor.index_copy_(0, targets, tensor.index_select(0, sources))

"""The batch-invariant mode: a token's numbers do not depend on the tokens computed beside it.

Libraries choose a matrix product's or a reduction's order of additions by its shape, so the same
token gives other last bits in a batch of 3 than in a batch of 300. In this mode every operation
that adds in a chosen order runs on tiles of one fixed shape.

The mode is the process's, like torch.use_deterministic_algorithms: an engine process serves one
model in one mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TILE = 16  # tokens

_enabled = False


def use_batch_invariant(enabled: bool) -> None:
    """Switches the process's mode. Weights may be packed before or after."""
    global _enabled
    _enabled = enabled


def is_batch_invariant() -> bool:
    return _enabled


def by_tiles(operation: Callable[[Tensor], Tensor], x: Tensor, rows: int = TILE) -> Tensor:
    """`operation`, which treats rows alone, over x: [num_rows, ...]; in the batch-invariant mode
    by tiles of `rows` rows.

    The last tile is filled up with zeros, whose results are dropped.
    """
    if not _enabled:
        return operation(x)
    num_rows = x.shape[0]
    padded = x.new_zeros(-(-num_rows // rows) * rows, *x.shape[1:])
    padded[:num_rows] = x
    return torch.cat([operation(tile) for tile in padded.split(rows)])[:num_rows]

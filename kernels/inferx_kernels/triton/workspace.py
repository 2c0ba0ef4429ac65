"""Scratch memory that kernels of one stream share: partial results and arrival counters.

A kernel touches it only after the kernel before it in the stream is complete, so one buffer a
device serves them all. It is allocated on first use, which has to be outside of a graph capture
(a warm-up step is).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

PART_FLOATS = 16 * 2**20
COUNTERS = 65_536


class Workspace(NamedTuple):
    parts: Tensor  # [PART_FLOATS] fp32
    counters: Tensor  # [COUNTERS] int32; zeros between kernels


@functools.cache
def _allocate(device: torch.device) -> Workspace:
    return Workspace(
        torch.empty(PART_FLOATS, dtype=torch.float32, device=device),
        torch.zeros(COUNTERS, dtype=torch.int32, device=device),
    )


def workspace(device: torch.device, *, floats: int, counters: int) -> Workspace:
    """The device's scratch memory, checked to hold what is asked of it."""
    if floats > PART_FLOATS or counters > COUNTERS:
        raise ValueError(
            f"a kernel asks for {floats} floats and {counters} counters of scratch memory: "
            f"at most {PART_FLOATS} and {COUNTERS} are there, so split its work less"
        )
    return _allocate(device)

"""The gated activation of SwiGLU feed-forward layers (arXiv 2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from inferx_kernels.invariance import by_tiles


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up: [num_tokens, 2 * intermediate], gate first.

    Returns [num_tokens, intermediate] in its dtype.
    """

    def gated(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    return by_tiles(gated, gate_up, rows=1)

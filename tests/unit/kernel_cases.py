"""Where the Triton kernels' tests run, and data they share.

On a machine with an NVIDIA GPU they run compiled, elsewhere through Triton's interpreter. The
interpreter rounds to bf16 towards zero, so that its tolerance is twice the GPU's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

from torch import Tensor  # noqa: E402

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
E4M3 = torch.float8_e4m3fn
ROUNDING = 4e-3 if ON_GPU else 8e-3  # of bf16 results, relative


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, device=DEVICE).to(dtype)


def distance(got: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of what is expected; NaN never passes."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm())


class Paged(NamedTuple):
    """Sequences whose pages lie in any order; pages that none of them owns hold NaN."""

    k: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    v: Tensor
    block_table: Tensor  # [num_rows, max_blocks] int32
    seq_lens: Tensor  # [num_rows] int32

    def sequence(self, row: int) -> tuple[Tensor, Tensor]:
        """A row's K and V: [length, num_kv_heads, head_dim] fp32."""
        tokens = torch.arange(int(self.seq_lens[row]), device=self.k.device)
        block_size = self.k.shape[1]
        slots = self.block_table[row, tokens // block_size].long() * block_size
        slots += tokens % block_size
        return tuple(pages.float().flatten(0, 1)[slots] for pages in (self.k, self.v))


def paged(
    lens: list[int], *, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> Paged:
    used = [-(-length // block_size) for length in lens]
    num_blocks = sum(used) + 3
    order = torch.randperm(num_blocks)
    block_table = torch.full((len(lens), max(used) + 1), int(order[-1]), dtype=torch.int32)
    start = 0
    for row, count in enumerate(used):
        block_table[row, :count] = order[start : start + count]
        start += count
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    pages = [torch.randn(shape).to(dtype) for _ in range(2)]
    for tensor in pages:
        bits = tensor.view(torch.uint8 if dtype == E4M3 else torch.int16)
        bits[order[start:]] = 0x7F if dtype == E4M3 else 0x7FFF
    return Paged(
        pages[0].to(DEVICE),
        pages[1].to(DEVICE),
        block_table.to(DEVICE),
        torch.tensor(lens, dtype=torch.int32, device=DEVICE),
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, sliding_window: int | None = None
) -> Tensor:
    """Causal attention of a sequence's last queries. q: [num_queries, num_heads, head_dim];
    k, v: [length, num_kv_heads, head_dim]. Returns fp32.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    places = torch.arange(len(k), device=q.device)
    positions = places[len(k) - len(q) :].unsqueeze(1)
    seen = places <= positions
    if sliding_window is not None:
        seen &= places > positions - sliding_window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def check_replays_give_the_same_bits(step: Callable[[], Tensor]) -> None:
    """Of a graph of the step, a hundred times; on a GPU."""
    first = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(100):
        out.zero_()
        graph.replay()
        assert torch.equal(out, first)

"""Sparse products inside CUDA graphs, on Llama-3-8B's shapes and with the sizes chosen there."""

from __future__ import annotations

import kernel_cases as cases
import pytest
import torch
from inferx_kernels import sparse
from inferx_kernels.linear import PackedLinear, column_norms, pack_linear
from inferx_kernels.sparse import COUNTS, Counters, SparseLinear, Threshold, pack_sparse
from inferx_kernels.triton.sparse_linear import sparse_linear
from inferx_kernels.triton.sparse_tuning import sparse_config
from torch import Tensor

HIDDEN, FFN, EPS = 4096, 14_336, 1e-5
WEIGHTS = [torch.bfloat16, cases.E4M3]


def weight(features: int, width: int, dtype: torch.dtype) -> PackedLinear:
    values = cases.randn(features, width) * 0.02
    if dtype is not cases.E4M3:
        return pack_linear(values)
    scale = values.abs().amax(1).float() / 448
    return PackedLinear((values / scale.unsqueeze(1)).to(dtype), None, False, scale)


def threshold(value: float, norms: Tensor | None = None) -> Threshold:
    return Threshold(torch.full((1,), value, device=cases.DEVICE), norms)


def counters(num_tokens: int) -> Counters:
    ring = torch.zeros(2, num_tokens, COUNTS, device=cases.DEVICE)
    return Counters(ring, torch.zeros(1, dtype=torch.int32, device=cases.DEVICE))


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("is_aware", [False, True])
def test_a_graph_follows_thresholds_and_steps_that_change(
    num_tokens: int, dtype: torch.dtype, is_aware: bool
) -> None:
    plain = weight(2 * FFN, HIDDEN, dtype)
    norms = column_norms(plain) if is_aware else None
    packed = pack_sparse(plain, is_gated=True)
    x, gain = cases.randn(num_tokens, HIDDEN), cases.rand(HIDDEN, dtype=torch.bfloat16) + 0.5
    limit, kept = threshold(0.0, norms), counters(num_tokens)
    fused = {"norm_weight": gain, "eps": EPS}

    def product() -> Tensor:
        return sparse_linear(x, packed, limit, **fused, counters=kept)

    product()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = product()
    for step, share in ((0, 0.0), (1, 0.6), (0, 1.5), (1, 100.0)):
        limit.value.fill_(share)
        kept.step.fill_(step)
        x.copy_(cases.randn(num_tokens, HIDDEN))
        graph.replay()
        wanted = counters(num_tokens)
        expected = sparse.sparse_linear(x, packed, limit, **fused, counters=wanted)
        assert cases.distance(out + 1, expected + 1) < cases.ROUNDING
        # A last bit of the norm can carry a channel over the threshold.
        torch.testing.assert_close(kept.ring[step], wanted.ring[0], rtol=1e-3, atol=2)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_a_chain_of_dependent_launches_gives_the_same_bits_every_time(dtype: torch.dtype) -> None:
    layers = [
        tuple(
            pack_sparse(weight(features, width, dtype), is_gated=features > HIDDEN)
            for features, width in ((HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN))
        )
        for _ in range(3)
    ]
    gain = cases.rand(HIDDEN, dtype=torch.bfloat16)
    x = cases.randn(1, HIDDEN)
    limits = threshold(0.1), threshold(0.15), threshold(0.02)

    def step() -> Tensor:
        h = x * 1  # an ordinary kernel begins the chain
        for o, gate_up, down in layers:
            h = sparse_linear(h, o, limits[0], residual=h)
            gated = sparse_linear(h, gate_up, limits[1], norm_weight=gain, eps=EPS)
            h = sparse_linear(gated, down, limits[2], residual=h)
        return h

    cases.check_replays_give_the_same_bits(step)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_only_what_is_kept_is_read(dtype: torch.dtype) -> None:
    """Behind each program's first channels, 128 at most, weights that no token keeps may hold
    anything."""
    plain = weight(HIDDEN, FFN, dtype)
    packed: SparseLinear = pack_sparse(plain)
    x = cases.randn(2, FFN)
    limit = threshold(0.67)
    wanted = sparse_linear(x, packed, limit)
    unread = ~(x.float().abs() > limit.value).any(0)
    config = sparse_config(len(x), HIDDEN, FFN, dtype.itemsize)
    unread &= torch.arange(FFN, device=cases.DEVICE) % config.k_part >= 128
    packed.weight.view(torch.uint8)[unread] = 0xFF  # NaN
    assert unread.any()
    assert torch.equal(sparse_linear(x, packed, limit), wanted)

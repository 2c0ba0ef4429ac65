"""Sparse products of the Triton kernel, against the masked dense product of the reference."""

from __future__ import annotations

from collections.abc import Callable

import kernel_cases as cases
import pytest
import torch
from inferx.sparse.definitions import masked_energy, sparsity, threshold_mask, union_density
from inferx_kernels import sparse
from inferx_kernels.linear import PackedLinear, column_norms
from inferx_kernels.sparse import (
    COUNTS,
    FIGURES,
    Counters,
    SparseLinear,
    Threshold,
    pack_sparse,
)
from inferx_kernels.triton import sparse_linear as launcher
from inferx_kernels.triton.sparse_linear import sparse_linear
from inferx_kernels.triton.sparse_summary import summarize_counts
from inferx_kernels.triton.sparse_tuning import SparseConfig
from torch import Tensor

WIDTH, FEATURES = 88, 80  # a part of 64 and one of 24; 1.25 tiles of 64
CONFIG = SparseConfig(block_n=64, k_part=64, rows=2, num_warps=1)


class Unlaunched:
    """In a kernel's place: keeps the grids that it would be launched with."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, int]] = []

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *arguments, **options: None


def weight(is_fp8: bool, has_bias: bool = False, width: int = WIDTH) -> PackedLinear:
    bias = cases.randn(FEATURES) if has_bias else None
    if is_fp8:
        numbers = cases.randn(FEATURES, width, dtype=cases.E4M3)
        return PackedLinear(numbers, bias, False, cases.rand(FEATURES))
    return PackedLinear(cases.randn(FEATURES, width), bias, False)


def threshold(value: float, norms: Tensor | None = None) -> Threshold:
    return Threshold(torch.tensor([value], device=cases.DEVICE), norms)


def counters(num_tokens: int) -> Counters:
    ring = torch.full((3, num_tokens, COUNTS), -1.0, device=cases.DEVICE)
    return Counters(ring, torch.tensor([1], dtype=torch.int32, device=cases.DEVICE))


@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(("is_gated", "is_aware"), [(False, False), (True, True)])
def test_it_is_the_masked_dense_product_with_all_that_is_fused(
    num_tokens: int, is_fp8: bool, is_gated: bool, is_aware: bool
) -> None:
    x = cases.randn(num_tokens, WIDTH, dtype=torch.float32)
    packed = weight(is_fp8, has_bias=True)
    norms = column_norms(packed) / 10 if is_aware else None
    residual = None if is_gated else cases.randn(num_tokens, FEATURES)
    fused = {
        "norm_weight": cases.rand(WIDTH) + 0.5,
        "eps": 1e-5,
        "residual": residual,
    }
    sparse_weight = pack_sparse(packed, is_gated=is_gated)
    got, wanted = counters(num_tokens), counters(num_tokens)
    y = sparse_linear(x, sparse_weight, threshold(0.7, norms), **fused, counters=got, config=CONFIG)
    expected = sparse.sparse_linear(
        x, sparse_weight, threshold(0.7, norms), **fused, counters=wanted
    )
    assert cases.distance(y, expected) < 1e-5
    torch.testing.assert_close(got.ring, wanted.ring, rtol=1e-5, atol=0)


@pytest.mark.parametrize("is_fp8", [False, True])
def test_a_threshold_of_zero_gives_the_dense_product(is_fp8: bool) -> None:
    packed, x = weight(is_fp8), cases.randn(1, WIDTH, dtype=torch.float32)
    values = packed.weight.double()
    if packed.weight_scale is not None:
        values = values * packed.weight_scale.double().unsqueeze(1)
    y = sparse_linear(x, pack_sparse(packed), threshold(0.0), config=CONFIG)
    assert cases.distance(y, x.double() @ values.T) < 1e-5


def test_each_token_keeps_its_own_channels() -> None:
    """Channels that only another token keeps add nothing to a token."""
    packed = SparseLinear(torch.ones(WIDTH, 64, dtype=torch.bfloat16), None, None, False)
    packed = packed._replace(weight=packed.weight.to(cases.DEVICE))
    x = torch.full((2, WIDTH), 0.5, device=cases.DEVICE)
    x[0, :3], x[1, 2:7] = 1.0, 2.0
    kept = counters(2)
    y = sparse_linear(x, packed, threshold(0.5), counters=kept, config=CONFIG)
    assert y.tolist() == [[3.0] * 64, [10.0] * 64]
    lost = 0.25 * (WIDTH - 3), 0.25 * (WIDTH - 5)
    assert kept.ring[1].tolist() == [
        [3.0, 7.0, lost[0], lost[0] + 3.0],
        [5.0, 7.0, lost[1], lost[1] + 20.0],
    ]
    assert (kept.ring[[0, 2]] == -1).all()


@pytest.mark.parametrize(("limit", "num_kept"), [(1.399, 0.0), (1.398, WIDTH / 2)])
def test_a_score_is_that_of_the_normed_activation_as_the_model_holds_it(
    limit: float, num_kept: float
) -> None:
    """7 / sqrt((1 + 49) / 2) is 1.4, and 1.3984 in bfloat16."""
    packed = pack_sparse(weight(False))
    x = torch.tensor([1.0, 7.0], dtype=torch.bfloat16, device=cases.DEVICE).repeat(1, WIDTH // 2)
    gain = torch.ones(WIDTH, dtype=torch.bfloat16, device=cases.DEVICE)
    for product, options in ((sparse_linear, {"config": CONFIG}), (sparse.sparse_linear, {})):
        kept = counters(1)
        product(x, packed, threshold(limit), norm_weight=gain, counters=kept, **options)
        assert kept.ring[1, 0, 0] == num_kept


def test_parts_may_be_shorter_than_what_a_program_begins_with() -> None:
    """Eight channels, of 16 that it asks for at once."""
    packed, x = pack_sparse(weight(False)), cases.randn(2, WIDTH, dtype=torch.float32)
    config = SparseConfig(block_n=64, k_part=8, rows=4, num_warps=1)
    y = sparse_linear(x, packed, threshold(0.7), config=config)
    assert cases.distance(y, sparse.sparse_linear(x, packed, threshold(0.7))) < 1e-5


def test_a_token_that_keeps_nothing_gets_the_residual_alone() -> None:
    packed = pack_sparse(weight(False))
    x, residual = cases.randn(2, WIDTH), cases.randn(2, FEATURES)
    kept = counters(2)
    y = sparse_linear(x, packed, threshold(100.0), residual=residual, counters=kept, config=CONFIG)
    assert torch.equal(y, residual)
    assert kept.ring[1, :, :2].tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("channel", [5, WIDTH - 1])  # read before the list is made, and from it
def test_a_nan_is_kept_by_whatever_threshold_and_shows_in_its_tokens_result(channel: int) -> None:
    packed, x = pack_sparse(weight(False)), cases.randn(2, WIDTH, dtype=torch.float32)
    x[1, channel] = float("nan")
    kept = counters(2)
    y = sparse_linear(x, packed, threshold(100.0), counters=kept, config=CONFIG)
    assert (y[0] == 0).all()
    assert y[1].isnan().all()
    assert kept.ring[1, :, :2].tolist() == [[0.0, 1.0], [1.0, 1.0]]
    assert kept.ring[1, 1, 3].isnan()


def test_what_the_reference_counts_is_what_sparsity_means() -> None:
    x = cases.randn(3, WIDTH, dtype=torch.float32)
    keeps = threshold_mask(x, 0.7)
    counted = counters(3)
    sparse.sparse_linear(x, pack_sparse(weight(False)), threshold(0.7), counters=counted)
    figures = torch.zeros(1, FIGURES, device=cases.DEVICE)
    widths, sites = (torch.tensor([n], device=cases.DEVICE) for n in (WIDTH, 0))
    sparse.summarize_counts(counted.ring[1:2], widths, sites, figures)
    share, energy = sparsity(x, 0.7).mean().item(), masked_energy(x, keeps).mean().item()
    assert figures[0].tolist() == pytest.approx([share, union_density(keeps), energy, 0.0])


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_counts_are_summarized_as_the_reference_does(num_tokens: int) -> None:
    """Of 130 products out of 140, some with inputs of zeros, infinities and NaN."""
    room = torch.rand(140, 4, COUNTS) * 5
    room[2, 0, 3], room[5, :, 3], room[7, 0, 3] = 0.0, float("inf"), float("nan")
    counts = room.to(cases.DEVICE)[:, :num_tokens]
    widths = torch.arange(130.0, device=cases.DEVICE) + 8
    sites = torch.randperm(140)[:130].to(cases.DEVICE)
    got, wanted = (torch.full((140, FIGURES), -1.0, device=cases.DEVICE) for _ in range(2))
    summarize_counts(counts, widths, sites, got)
    sparse.summarize_counts(counts, widths, sites, wanted)
    torch.testing.assert_close(got, wanted)


def test_the_same_bits_every_time() -> None:
    packed, x = pack_sparse(weight(True)), cases.randn(3, WIDTH)
    first = sparse_linear(x, packed, threshold(0.6), config=CONFIG)
    for _ in range(3):
        assert torch.equal(sparse_linear(x, packed, threshold(0.6), config=CONFIG), first)


def test_the_sizes_that_are_chosen_by_default_work_for_a_small_model() -> None:
    packed, x = pack_sparse(weight(False, width=576)), cases.randn(1, 576)
    y = sparse_linear(x, packed, threshold(0.6))
    assert cases.distance(y, sparse.sparse_linear(x, packed, threshold(0.6))) < cases.ROUNDING


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, cases.E4M3])
@pytest.mark.parametrize(("hidden", "ffn"), [(4096, 14_336), (8192, 28_672)])
def test_the_scratch_memory_has_room_for_the_products_of_8b_and_70b(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, dtype: torch.dtype, hidden: int, ffn: int
) -> None:
    """Sizes alone: nothing is launched, and memory that nobody touches costs none."""
    launched = Unlaunched()
    monkeypatch.setattr(launcher, "sparse_gemv_kernel", launched)
    shapes = [(hidden + 2048, hidden), (hidden, hidden), (2 * ffn, hidden), (hidden, ffn)]
    for features, width in shapes:
        packed = SparseLinear(torch.empty(width, features, dtype=dtype), None, None, False)
        x = torch.empty(num_tokens, width, dtype=torch.bfloat16)
        sparse_linear(x, packed, Threshold(torch.zeros(1)))
    assert len(launched.grids) == len(shapes)  # none was refused


def test_packing_alternates_gate_and_up() -> None:
    rows = torch.arange(32.0).unsqueeze(1).expand(32, 4).to(torch.bfloat16)
    scale = torch.arange(32.0)
    packed = pack_sparse(PackedLinear(rows, 2 * scale, False, scale), is_gated=True)
    order = [number for pair in zip(range(16), range(16, 32), strict=True) for number in pair]
    assert packed.weight[0].tolist() == order
    assert packed.weight_scale is not None
    assert packed.weight_scale.tolist() == order
    assert packed.bias is not None
    assert packed.bias.tolist() == [2 * number for number in order]


def test_a_weight_whose_channels_are_no_whole_loads_is_refused() -> None:
    with pytest.raises(ValueError, match="12 output features of 2 bytes has no sparse product"):
        pack_sparse(PackedLinear(torch.zeros(12, 8, dtype=torch.bfloat16), None, False))


def test_more_tokens_than_it_takes_are_refused() -> None:
    packed = pack_sparse(weight(False))
    with pytest.raises(ValueError, match="has 5 tokens, and takes 4"):
        sparse_linear(cases.randn(5, WIDTH), packed, threshold(0.6))

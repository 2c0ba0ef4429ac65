"""S, top-k masks, masked energy and union density: exact values, and what always holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inferx.sparse.definitions import (
    masked_energy,
    masked_share,
    sparsity,
    threshold_mask,
    topk_mask,
    union_density,
)

X = torch.tensor([[0.0, -1.0, 2.0, -4.0], [0.5, 0.5, -0.5, 8.0]])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.0, [0.25, 0.0]), (0.5, [0.25, 0.75]), (1.0, [0.5, 0.75]), (8.0, [1.0, 1.0])],
)
def test_sparsity_counts_magnitudes_up_to_the_threshold_and_it_too(threshold, expected):
    assert sparsity(X, threshold).tolist() == expected


def test_topk_keeps_the_largest_magnitudes():
    assert topk_mask(X, 0.5)[0].tolist() == [False, False, True, True]
    assert topk_mask(X, 0.25).tolist() == [[False, False, False, True]] * 2


@pytest.mark.parametrize(("k_ratio", "count"), [(0.0, 0), (0.2, 1), (0.5, 2), (0.9, 4), (1.0, 4)])
def test_topk_keeps_exactly_its_share_among_equals(k_ratio, count):
    assert topk_mask(torch.ones(3, 4), k_ratio).sum(-1).tolist() == [count] * 3


@pytest.mark.parametrize("k_ratio", [-0.1, 1.1, float("nan")])
def test_topk_refuses_what_is_no_share(k_ratio):
    with pytest.raises(ValueError, match="k_ratio is"):
        topk_mask(X, k_ratio)


def test_masked_energy_is_the_masked_share_of_the_squares():
    kept = torch.tensor([[True, False, False, True], [False, False, False, True]])
    assert masked_energy(X, kept).tolist() == pytest.approx([5 / 21, 0.75 / 64.75])


def test_masked_energy_of_zeros_is_zero():
    assert masked_energy(torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool)).tolist() == [0.0]


@pytest.mark.parametrize("mask", [lambda x: threshold_mask(x, 2.0), lambda x: topk_mask(x, 0.5)])
def test_every_mask_keeps_what_is_not_a_number(mask):
    x = torch.tensor([1.0, float("nan"), float("inf"), 0.0])
    assert mask(x).tolist() == [False, True, True, False]


def test_union_density_counts_channels_that_any_token_keeps():
    kept = torch.tensor([[True, False, False, False], [True, True, False, False]])
    assert union_density(kept) == 0.5


activations = st.lists(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=8, max_size=8), min_size=1, max_size=5
).map(torch.tensor)
with_nan = activations.map(lambda x: x.masked_fill(x == 0, float("nan")))


@given(activations | with_nan, st.floats(0, 1e3, width=32))
def test_a_threshold_masks_the_share_that_sparsity_counts(x, threshold):
    kept = threshold_mask(x, threshold)
    assert torch.equal(masked_share(kept), sparsity(x, threshold))
    assert union_density(kept) >= 1 - masked_share(kept).min().item()


@given(activations, st.sampled_from([0.25, 0.5, 0.75]))
def test_no_mask_of_as_many_channels_masks_less_energy_than_topk(x, k_ratio):
    first = torch.zeros_like(x, dtype=torch.bool)
    first[:, : round(k_ratio * 8)] = True
    kept = topk_mask(x, k_ratio)
    assert torch.equal(kept.sum(-1), first.sum(-1))
    assert (masked_energy(x, kept) <= masked_energy(x, first) + 1e-6).all()

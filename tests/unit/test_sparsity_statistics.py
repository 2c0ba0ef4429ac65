"""Histograms and moments of activations, and perplexity's paired differences: exact values."""

from __future__ import annotations

import math

import pytest
import torch
from inferx.perplexity import Growth, windows
from inferx.sparse.statistics import Histogram, Moments, Summary


def test_a_histograms_quantiles_are_exact_for_bfloat16():
    histogram = Histogram()
    histogram.add(torch.tensor([[0.0, 0.5], [1.0, 3.0]], dtype=torch.bfloat16))
    shares = (0.0, 0.25, 0.26, 0.5, 0.75, 1.0)
    assert [histogram.quantile(share) for share in shares] == [0.0, 0.0, 0.5, 0.5, 1.0, 3.0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_threshold_masks_its_share_and_no_more_than_a_bin_beside(share, dtype):
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    histogram = Histogram()
    histogram.add(x.abs())
    masked = (x.float().abs() <= histogram.threshold(share)).float().mean().item()
    assert share <= masked <= share + 0.01


def test_no_share_masks_not_even_zeros():
    histogram = Histogram()
    histogram.add(torch.zeros(4))
    assert histogram.threshold(0.0) < 0 <= histogram.threshold(0.01)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_histogram_knows_what_is_not_finite(number):
    histogram = Histogram()
    histogram.add(torch.tensor([1.0]))
    assert histogram.is_finite
    histogram.add(torch.tensor([number]))
    assert not histogram.is_finite


def test_moments_are_those_of_all_that_was_added():
    moments = Moments()
    moments.add(torch.tensor([1.0, 2.0]))
    moments.add(torch.tensor([[3.0], [6.0]]))
    assert moments.summary() == Summary(3.0, 3.5**0.5)


def test_growth_is_paired_by_window():
    growth = Growth.between([1.1, 2.1, 3.1], [1.0, 2.0, 3.0])
    assert growth.mean == pytest.approx(math.expm1(0.1))
    assert growth.interval == pytest.approx((growth.mean, growth.mean))


def test_windows_drop_what_does_not_fill_one():
    assert windows([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]

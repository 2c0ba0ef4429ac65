"""e4m3 and its scales: exact numbers, and what computes with them."""

from __future__ import annotations

import math

import pytest
import torch
from inferx_kernels import fp8, ops
from inferx_kernels.fp8 import E4M3, quantize_rows, quantize_weight, requantize_weight, to_e4m3
from torch import Tensor


def values(quantized: fp8.Quantized) -> Tensor:
    return quantized.x.double() * quantized.scale.double().unsqueeze(1)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype is b.dtype is E4M3 and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 0.0),
        (1.06, 1.0),
        (1.0625, 1.0),  # half-way, to the even mantissa
        (1.1875, 1.25),
        (-17.1, -18.0),  # 16 and 18 are neighbours
        (-16.9, -16.0),
        (2**-9, 2**-9),  # the smallest
        (2**-10, 0.0),
        (3 * 2**-10, 2**-8),
        (448.0, 448.0),
        (463.0, 448.0),
        (1e30, 448.0),
        (-500.0, -448.0),
        (math.inf, 448.0),
        (math.nan, math.nan),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_rounded_to_the_nearest_and_saturate(x, expected, dtype):
    given = torch.tensor([x], dtype=dtype)
    if given.float().item() == x or dtype is torch.float32:
        got = to_e4m3(given).float()
        torch.testing.assert_close(got, torch.tensor([expected]), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_rows_scale_is_its_largest_magnitude_over_448(dtype):
    x = torch.tensor([[896.0, 1.0, -3.25, 0.0], [-7.0, 3.5, 0.25, 7.0]], dtype=dtype)
    x, scale = quantize_rows(x)
    assert scale.dtype is torch.float32
    assert scale.tolist() == [2.0, 7 / 448]
    assert x.float().tolist() == [[448.0, 0.5, -1.625, 0.0], [-448.0, 224.0, 16.0, 448.0]]


def test_a_row_of_zeros_has_a_scale_and_stays_zeros():
    x, scale = quantize_rows(torch.zeros(2, 5))
    assert not x.float().any()
    assert scale.tolist() == pytest.approx([1e-10 / 448] * 2)


def test_quantizing_what_was_quantized_changes_nothing():
    once = quantize_rows(torch.randn(7, 40))
    again = quantize_rows(values(once).float())
    assert same(once.x, again.x)
    torch.testing.assert_close(once.scale, again.scale, rtol=1e-6, atol=0)


def test_values_are_off_by_half_of_the_last_of_four_bits():
    x = torch.randn(50, 300)
    off = (values(quantize_rows(x)) - x).abs()
    least_normal = 2**-6 * x.abs().amax(1, keepdim=True) / 448
    assert bool((off <= torch.maximum(x.abs(), least_normal) * 2**-4 * 1.00001).all())


def test_large_weights_are_quantized_in_pieces(monkeypatch):
    weight = torch.randn(50, 72).bfloat16()
    whole = quantize_rows(weight)
    monkeypatch.setattr(fp8, "_PIECE", 72 * 7)
    pieces = quantize_weight(weight)
    assert same(pieces.x, whole.x)
    assert torch.equal(pieces.scale, whole.scale)


@pytest.mark.parametrize("piece", [fp8._PIECE, 72 * 7])
def test_blocks_scales_become_scales_of_rows(piece, monkeypatch):
    monkeypatch.setattr(fp8, "_PIECE", piece)
    weight = (torch.randn(50, 72) * 100).to(E4M3)
    scale = torch.rand(4, 5).add_(0.1)  # blocks of 16 x 16; the last have 2 rows and 8 columns
    spread = scale.repeat_interleave(16, 0)[:50].repeat_interleave(16, 1)[:, :72]
    expected = quantize_rows(weight.float() * spread)
    got = requantize_weight(weight, scale, (16, 16))
    assert same(got.x, expected.x)
    assert torch.equal(got.scale, expected.scale)


def test_blocks_of_one_scale_keep_their_numbers():
    weight = (torch.randn(8, 32) * 100).clamp(-448, 448).to(E4M3)
    weight[:, 0] = 448.0
    got = requantize_weight(weight, torch.full((2, 2), 0.25).bfloat16(), (4, 16))
    assert same(got.x, weight)
    assert got.scale.tolist() == [0.25] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_multiplies_the_dequantized_and_rounds_once(has_bias, dtype, monkeypatch):
    monkeypatch.setattr("inferx_kernels.linear._PIECE", 72 * 9)
    weight = quantize_weight(torch.randn(40, 72))
    bias = torch.randn(40).to(dtype) if has_bias else None
    x = torch.randn(5, 72).to(dtype)
    expected = values(quantize_rows(x)) @ values(weight).T + (bias.double() if has_bias else 0)
    got = ops.linear(x, ops.pack_linear(weight.x, bias, weight.scale))
    assert got.dtype is dtype
    rounding = {"rtol": 2e-5, "atol": 2e-5} if dtype is torch.float32 else {}
    torch.testing.assert_close(got, expected.to(dtype), **rounding)


def test_the_packed_weight_is_e4m3_in_rows_with_a_scale_each():
    weight, scale = quantize_weight(torch.randn(40, 72))
    packed = ops.pack_linear(weight, None, scale)
    assert packed.weight.shape == (40, 72)
    assert packed.weight.is_contiguous()
    assert same(packed.weight, weight)
    assert torch.equal(packed.weight_scale, scale)
    assert not packed.is_blocked


@pytest.mark.usefixtures("batch_invariant")
def test_batch_invariant_linear_has_the_same_bits_whoever_shares_the_batch():
    x = torch.randn(70, 576).bfloat16()
    weight, scale = quantize_weight(torch.randn(864, 576))
    packed = ops.pack_linear(weight, None, scale)
    together = ops.linear(x, packed)
    for some in (slice(0, 1), slice(3, 4), slice(5, 22), slice(40, 70), slice(69, 70)):
        assert torch.equal(ops.linear(x[some], packed), together[some])


def test_k_and_v_are_written_to_e4m3_pages_without_a_scale():
    k_pages, v_pages = torch.zeros(2, 4, 16, 2, 8).to(E4M3)
    both = torch.randn(3, 5, 8).bfloat16()
    both[0, 0, 0], both[1, 2, 3] = 1e4, -1e4
    ops.write_kv(both[:, :2], both[:, 2:4], k_pages, v_pages, torch.tensor([17, 63, 0]))
    for pages, new in ((k_pages, both[:, :2]), (v_pages, both[:, 2:4])):
        for page, offset, token in ((1, 1, 0), (3, 15, 1), (0, 0, 2)):
            assert same(pages[page, offset], new[token].clamp(-448, 448).to(E4M3))
        assert pages.float().count_nonzero() <= new.count_nonzero()
    assert k_pages[1, 1, 0, 0].item() == 448
    assert v_pages[3, 15, 0, 3].item() == -448


def test_e4m3_pages_are_copied():
    pages = torch.arange(4.0).view(4, 1, 1, 1).repeat(1, 16, 1, 8).to(E4M3)
    ops.copy_pages([pages], torch.tensor([0, 1]), torch.tensor([1, 3]))
    assert pages[:, 15, 0, 7].tolist() == [0, 0, 2, 1]


def test_attention_over_e4m3_pages_is_that_over_the_widened():
    k_pages, v_pages = torch.randn(2, 6, 16, 2, 8).to(E4M3)
    plan = ops.plan_attention(
        torch.tensor([[4, 1], [0, 5]], dtype=torch.int32),
        torch.tensor([20, 9], dtype=torch.int32),
        torch.tensor([0, 1, 6], dtype=torch.int32),
        block_size=16, num_heads=6, num_kv_heads=2, head_dim=8,
    )  # fmt: skip
    q = torch.randn(6, 6, 8)
    got = ops.paged_attention(q, k_pages, v_pages, plan, 0.3)
    assert torch.equal(got, ops.paged_attention(q, k_pages.float(), v_pages.float(), plan, 0.3))

"""Norms, rotation, activation, linear layers and KV pages against independent formulations."""

from __future__ import annotations

import pytest
import torch
from inferx_kernels import ops
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

DTYPES = [torch.float32, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_rms_norm_equals_transformers(num_tokens, dtype):
    x = torch.randn(num_tokens, 72).to(dtype) * 3
    module = LlamaRMSNorm(72, eps=1e-5).to(dtype)
    module.weight.data.normal_()
    got = ops.rms_norm(x, module.weight.data, 1e-5)
    torch.testing.assert_close(got, module(x).detach(), **tolerance(dtype))


def test_rms_norm_of_tiny_values_keeps_eps():
    x = torch.full((1, 8), 1e-4)
    expected = 1e-4 / (1e-8 + 1e-5) ** 0.5
    torch.testing.assert_close(ops.rms_norm(x, torch.ones(8), 1e-5), torch.full((1, 8), expected))


def test_rms_norm_with_a_weight_a_head():
    x, weight = torch.randn(5, 3, 16), torch.randn(3, 16)
    expected = torch.stack([ops.rms_norm(x[:, h], weight[h], 1e-6) for h in range(3)], 1)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), expected)


def test_add_rms_norm_adds_to_the_residual_in_place():
    x, residual, weight = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)
    total = x + residual
    got = ops.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(residual, total)
    torch.testing.assert_close(got, ops.rms_norm(total, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_equals_transformers(dtype):
    config = LlamaConfig(hidden_size=32, intermediate_size=24)
    mlp = LlamaMLP(config)
    x = torch.randn(5, 48).to(dtype)
    expected = mlp.act_fn(x[:, :24]) * x[:, 24:]
    torch.testing.assert_close(ops.silu_mul(x), expected, **tolerance(dtype))


@pytest.mark.parametrize("head_dim", [8, 64, 80])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_equals_transformers(head_dim, dtype):
    config = LlamaConfig(
        hidden_size=head_dim * 4, num_attention_heads=4, head_dim=head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    embedding = LlamaRotaryEmbedding(config)
    positions = torch.tensor([0, 1, 7, 300, 4000])
    x = torch.randn(5, 6, head_dim).to(dtype)
    cos, sin = embedding(x.float(), positions.unsqueeze(0))
    expected, _ = apply_rotary_pos_emb(*[x.float().transpose(0, 1).unsqueeze(0)] * 2, cos, sin)
    got = ops.apply_rope(x, ops.plan_rope(positions, embedding.inv_freq, 1.0))
    assert got.dtype is dtype
    torch.testing.assert_close(got.float(), expected[0].transpose(0, 1), **tolerance(dtype))


def test_partial_rope_passes_the_rest_through():
    x, positions = torch.randn(3, 2, 16), torch.tensor([1, 2, 3])
    inv_freq = torch.tensor([1.0, 0.1])
    got = ops.apply_rope(x, ops.plan_rope(positions, inv_freq, 1.0))
    assert torch.equal(got[..., 4:], x[..., 4:])
    torch.testing.assert_close(
        got[..., :4], ops.apply_rope(x[..., :4], ops.plan_rope(positions, inv_freq, 1.0))
    )


def test_rope_scaling_is_a_factor_on_cos_and_sin():
    rotation = ops.plan_rope(torch.tensor([5]), torch.tensor([0.2]), 1.5)
    torch.testing.assert_close(rotation.cos.flatten(), torch.tensor([1.0, 1.0]).cos() * 1.5)
    torch.testing.assert_close(rotation.sin.flatten(), torch.tensor([-1.0, 1.0]).sin() * 1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 16, 33])
def test_linear_equals_a_matrix_product(num_tokens, has_bias, dtype):
    weight, bias = torch.randn(40, 72).to(dtype) * 0.1, torch.randn(40).to(dtype)
    x = torch.randn(num_tokens, 72).to(dtype)
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    got = ops.linear(x, ops.pack_linear(weight, bias if has_bias else None))
    torch.testing.assert_close(got, expected.to(dtype), **tolerance(dtype))


def test_linear_layers_see_few_numbers_of_tokens(monkeypatch):
    seen = set()
    real = torch.ops.mkldnn._linear_pointwise

    def recorded(x, *rest):
        seen.add(len(x))
        return real(x, *rest)

    weight = ops.pack_linear(torch.randn(8, 16))
    if not weight.is_blocked:
        pytest.skip("this torch has no blocked linear layers")
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", recorded)
    for num_tokens in range(1, 513):
        assert ops.linear(torch.randn(num_tokens, 16), weight).shape == (num_tokens, 8)
    assert sorted(seen) == [
        *(1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128),
        *(160, 192, 224, 256, 320, 384, 448, 512),
    ]


def test_write_kv_puts_every_token_into_its_place_and_leaves_the_rest():
    k_pages, v_pages = torch.zeros(4, 16, 2, 8), torch.zeros(4, 16, 2, 8)
    both = torch.randn(3, 5, 8)  # K and V are slices of one tensor
    ops.write_kv(both[:, :2], both[:, 2:4], k_pages, v_pages, torch.tensor([17, 63, 0]))
    for pages, new in ((k_pages, both[:, :2]), (v_pages, both[:, 2:4])):
        assert torch.equal(pages[1, 1], new[0])
        assert torch.equal(pages[3, 15], new[1])
        assert torch.equal(pages[0, 0], new[2])
        assert pages.count_nonzero() == new.count_nonzero()


def test_copy_pages_reads_every_source_before_it_writes():
    pages = torch.arange(4.0).view(4, 1, 1, 1).repeat(1, 16, 1, 8)
    ops.copy_pages([pages], torch.tensor([0, 1]), torch.tensor([1, 3]))
    assert pages[:, 0, 0, 0].tolist() == [0, 0, 2, 1]


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [72, 576, 864])
def test_batch_invariant_operations_have_the_same_bits_whoever_shares_the_batch(width, dtype):
    x = torch.randn(70, width).to(dtype)
    weight = ops.pack_linear((torch.randn(2 * width, width) * 0.05).to(dtype))
    scale = torch.randn(width).to(dtype)
    for operation in (
        lambda x: ops.linear(x, weight),
        lambda x: ops.rms_norm(x, scale, 1e-5),
        lambda x: ops.silu_mul(ops.linear(x, weight)),
    ):
        together = operation(x)
        for some in (slice(0, 1), slice(3, 4), slice(5, 22), slice(40, 70), slice(69, 70)):
            assert torch.equal(operation(x[some]), together[some])


@pytest.mark.usefixtures("batch_invariant")
def test_batch_invariant_angles_and_logprobs_have_the_same_bits_whoever_shares_the_batch():
    positions = torch.arange(3000, 3070)
    inv_freq = torch.rand(20)
    logits, tokens = torch.randn(70, 50_000), torch.arange(70)
    together = ops.plan_rope(positions, inv_freq, 1.0)
    logprobs = ops.chosen_logprobs(logits, tokens, 3)
    for some in (slice(0, 1), slice(3, 4), slice(5, 22), slice(40, 70), slice(69, 70)):
        alone = ops.plan_rope(positions[some], inv_freq, 1.0)
        assert torch.equal(alone.cos, together.cos[some])
        assert torch.equal(alone.sin, together.sin[some])
        for got, expected in zip(
            ops.chosen_logprobs(logits[some], tokens[some], 3), logprobs, strict=True
        ):
            assert torch.equal(got, expected[some])

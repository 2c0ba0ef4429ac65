"""What a forward pass shows of its products' inputs, and what becomes of it when it is changed."""

from __future__ import annotations

import pytest
import torch
from inferx.model.activations import PROJECTIONS, Site
from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.llama import LlamaForCausalLM
from inferx.model.registry import load_config
from inferx.model.weights import iter_weights
from inferx.source import ModelSource
from inferx_kernels import ops
from tiny_models import make_tiny_model
from torch import Tensor

BATCH = ForwardBatch(
    token_ids=torch.tensor([5, 6, 7]),
    positions=torch.arange(3),
    slot_mapping=torch.arange(3),
    query_start=torch.tensor([0, 3], dtype=torch.int32),
    seq_lens=torch.tensor([3], dtype=torch.int32),
    block_table=torch.zeros(1, 1, dtype=torch.int32),
    logits_indices=torch.tensor([2]),
    num_decodes=0,
    max_query_len=3,
    max_seq_len=3,
)


@pytest.fixture
def model(tmp_path) -> LlamaForCausalLM:
    make_tiny_model(tmp_path)
    source = ModelSource(tmp_path, "huggingface")
    config = load_config(source)
    model = LlamaForCausalLM(config, dtype=torch.float32, device=torch.device("cpu"))
    model.load_weights(iter_weights(source, config, torch.float32))
    return model


def pages(model: LlamaForCausalLM) -> list[KVCache]:
    shape = (1, 16, model.config.num_kv_heads, model.config.head_dim)
    return [KVCache(torch.zeros(shape), torch.zeros(shape)) for _ in model.layers]


class Seen:
    """Keeps the inputs, and zeroes those of one site."""

    def __init__(self, zeroed: Site | None = None) -> None:
        self.inputs: dict[Site, Tensor] = {}
        self._zeroed = zeroed

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        self.inputs[site] = x
        return torch.zeros_like(x) if site == self._zeroed else x


@torch.inference_mode()
def test_every_product_of_every_layer_is_seen_in_order_and_nothing_changes(model):
    seen = Seen()
    hidden = model.forward(BATCH, pages(model), seen)
    assert list(seen.inputs) == [Site(layer, p) for layer in (0, 1) for p in PROJECTIONS]
    widths = {site.projection: x.shape for site, x in seen.inputs.items()}
    assert widths == {"qkv": (3, 64), "o": (3, 64), "gate_up": (3, 64), "down": (3, 96)}
    assert torch.equal(hidden, model.forward(BATCH, pages(model)))


@torch.inference_mode()
def test_what_is_seen_is_what_the_product_multiplies(model):
    seen = Seen()
    model.forward(BATCH, pages(model), seen)
    gated = ops.silu_mul(model.layers[1].gate_up_proj(seen.inputs[Site(1, "gate_up")]))
    assert torch.equal(gated, seen.inputs[Site(1, "down")])
    first = model.layers[0].input_norm(model.embed_tokens(BATCH.token_ids))
    assert torch.equal(first, seen.inputs[Site(0, "qkv")])


@torch.inference_mode()
def test_a_replaced_input_changes_what_follows_and_nothing_before(model):
    plain, changed = Seen(), Seen(zeroed=Site(0, "down"))
    model.forward(BATCH, pages(model), plain)
    model.forward(BATCH, pages(model), changed)
    equal = [site for site, x in plain.inputs.items() if torch.equal(x, changed.inputs[site])]
    assert equal == [Site(0, projection) for projection in PROJECTIONS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_column_norms_are_those_of_the_weight_that_was_packed(dtype):
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = weight.float().norm(dim=0)
    torch.testing.assert_close(ops.column_norms(ops.pack_linear(weight)), expected)


def test_column_norms_of_fp8_weights_have_their_scales():
    weight = torch.randn(48, 32, generator=torch.Generator().manual_seed(0))
    numbers, scale = ops.quantize_weight(weight)
    expected = (numbers.float() * scale[:, None]).norm(dim=0)
    norms = ops.column_norms(ops.pack_linear(numbers, weight_scale=scale))
    torch.testing.assert_close(norms, expected)

"""transformers' models that round to e4m3 what fp8 weights and KV pages round; no code is shared
with ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

FLIP = 0.5  # of a tiny model's logits, which spread by several
_KV_ATTENTION = "sdpa_over_e4m3_keys_and_values"


def rounded_by_row(x: Tensor) -> Tensor:
    """The values that are left of each row, with one scale a row."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * scale


def linears(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """The layers' own by name: not the head."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith("model.layers.")
    }


@torch.no_grad()
def with_fp8_linears(model: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """Gives the linear layers these weights, and rounds their inputs."""
    modules = linears(model)
    for name, weight in weights.items():
        modules[name].weight.copy_(weight)
        modules[name].register_forward_pre_hook(lambda _, inputs: (rounded_by_row(inputs[0]),))


def assert_close_but_for_flips(got: Tensor, expected: Tensor) -> None:
    """Logits [num_tokens, vocab] are equal for most tokens. Where fp32's last bit decides how an
    activation is rounded to e4m3, it and the tokens behind it may be a little off."""
    apart = (got - expected).abs().amax(1)
    assert float(apart.median()) < 1e-3
    assert float(apart.max()) < FLIP


def with_fp8_kv(model: PreTrainedModel) -> None:
    model.set_attn_implementation(_KV_ATTENTION)


def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **given: Any) -> Any:
    k, v = (t.clamp(-448, 448).to(torch.float8_e4m3fn).to(t.dtype) for t in (k, v))
    return sdpa_attention_forward(module, q, k, v, mask, **given)


AttentionInterface.register(_KV_ATTENTION, _attention)
AttentionMaskInterface.register(_KV_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

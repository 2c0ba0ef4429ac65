"""SmolLM2 in transformers, with numbers rounded to e4m3 where ours are stored in e4m3: the oracle
of what fp8 costs, which shares no code with ours."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from _smollm2 import load_reference
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

_KV_ATTENTION = "sdpa_over_e4m3_keys_and_values"


def load_fake_fp8(dtype: str, *, weights: bool, kv: bool) -> transformers.PreTrainedModel:
    model = load_reference(dtype)
    if kv:
        model.set_attn_implementation(_KV_ATTENTION)
    for name, module in model.named_modules():
        if weights and isinstance(module, nn.Linear) and name != "lm_head":
            _quantize(module)
    return model


def _quantize(linear: nn.Linear) -> None:
    """Multiplies in fp32, weights rounded once and inputs at every call."""
    dtype = linear.weight.dtype
    linear.float()
    linear.weight.data = _rounded_by_row(linear.weight.data)
    linear.register_forward_pre_hook(lambda _, inputs: (_rounded_by_row(inputs[0].float()),))
    linear.register_forward_hook(lambda _, inputs, output: output.to(dtype))


def _rounded_by_row(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 448
    return torch.where(scale > 0, _rounded(x / scale) * scale, 0)


def _rounded(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def _attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **given: Any) -> Any:
    return sdpa_attention_forward(module, q, _rounded(k), _rounded(v), mask, **given)


transformers.AttentionInterface.register(_KV_ATTENTION, _attention)
transformers.AttentionMaskInterface.register(_KV_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

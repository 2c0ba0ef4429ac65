"""What a transformers model asks of attention, found out without its weights.

The model is built on the meta device and run once over a few tokens, with an attention and a mask
of ours in place, which write down who calls them with what. So a feature that is not handled is
refused by name before anything is loaded, and no list of models is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

PROBE = "inferx_probe"
_NUM_TOKENS = 4
_MAX_PATTERN = 1 << 20  # keys of the longest mask row that is looked at
# Arguments that say nothing new: what our attention does anyway, or what it is given besides.
_HARMLESS = {
    "dropout", "scaling", "sliding_window", "is_causal", "position_ids", "cache_position",
    "position_embeddings", "cache", "past_key_values", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict",
}  # fmt: skip
_NAMES = {
    "softcap": "a soft cap on its attention scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a position bias in its attention",
}


class UnsupportedModel(Exception):
    """One clause: what the model needs that is not handled."""


@dataclass(frozen=True)
class LayerAttention:
    """One layer's attention. `window`: tokens that a token attends to, itself included."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None


@dataclass
class _Probe:
    max_positions: int
    layers: dict[int, LayerAttention] = field(default_factory=dict)
    problem: str | None = None  # the first; transformers may wrap what is raised within a forward


_probe: ContextVar[_Probe] = ContextVar("inferx_probe")


def probe_attention(model: PreTrainedModel, max_positions: int) -> list[LayerAttention]:
    """Every layer's attention, of a model on the meta device with attn_implementation PROBE.

    Raises UnsupportedModel.
    """
    _refuse_modules(model)
    probe = _Probe(max_positions)
    token = _probe.set(probe)
    tokens = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        model(
            input_ids=tokens,
            position_ids=tokens,
            # without one, transformers would compare positions, which meta tensors do not have
            attention_mask=torch.ones_like(tokens),
            use_cache=False,
        )
    except Exception as error:
        if probe.problem is None:
            raise UnsupportedModel(
                f"its forward pass does not run on flat tokens ({type(error).__name__})"
            ) from error
    finally:
        _probe.reset(token)
    if probe.problem is not None:
        raise UnsupportedModel(probe.problem)
    num_layers = int(model.config.num_hidden_layers)
    if sorted(probe.layers) != list(range(num_layers)):
        raise UnsupportedModel(
            f"{num_layers - len(probe.layers)} of its {num_layers} layers are not attention layers"
        )
    return [probe.layers[index] for index in range(num_layers)]


def _refuse_modules(model: PreTrainedModel) -> None:
    """Tokens of all requests lie in one row: nothing but attention may mix them."""
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, nn.Conv1d | nn.RNNBase):
            raise UnsupportedModel("it has convolution or recurrent layers")
        if "moe" in kind.lower() or "expert" in kind.lower():
            raise UnsupportedModel(f"mixtures of experts ({kind}) are not supported yet")


def _fail(problem: str) -> UnsupportedModel:
    probe = _probe.get()
    probe.problem = probe.problem or problem
    return UnsupportedModel(problem)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any
) -> tuple[Tensor, None]:
    """query: [1, num_heads, num_tokens, head_dim]; key, value: [1, num_kv_heads, ...]."""
    layers = _probe.get().layers
    for name, argument in given.items():
        if argument is not None and name not in _HARMLESS:
            what = _NAMES.get(name, f"the argument {name!r} in its attention")
            raise _fail(f"it needs {what}, which is not supported")
    causal = given.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise _fail("its attention is not causal")
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int) or index in layers:
        raise _fail("a layer of it does not have exactly one attention")
    num_heads, head_dim, num_kv_heads = query.shape[1], query.shape[3], key.shape[1]
    if key.shape != value.shape or key.shape[2:] != query.shape[2:] or num_heads % num_kv_heads:
        raise _fail("its keys and values differ in size, which is not supported")
    if not hasattr(mask, "inferx_window"):
        raise _fail("the mask of its attention is not made by transformers' mask functions")
    layers[index] = LayerAttention(num_heads, num_kv_heads, head_dim, mask.inferx_window)
    return query.transpose(1, 2), None


def _mask(*, mask_function: Callable[..., Tensor], **_: Any) -> Tensor:
    """A mask without content that carries how far back its rows look."""
    mask: Any = torch.zeros(1, 1, _NUM_TOKENS, _NUM_TOKENS, device="meta")
    mask.inferx_window = _window(mask_function, _probe.get().max_positions)
    return mask


def _window(mask_function: Callable[..., Tensor], max_positions: int) -> int | None:
    """How many keys the last position sees; None: all. Two rows have to agree."""
    last = min(max_positions, _MAX_PATTERN) - 1
    keys = torch.arange(last + 2)
    counts = []
    for query in (last, last - 1):
        seen = torch.as_tensor(mask_function(0, 0, torch.tensor(query), keys)).expand(keys.shape)
        counts.append(int(seen.sum()))
        if not torch.equal(seen, (keys <= query) & (keys > query - counts[-1])):
            raise _fail("the pattern of its attention mask is not supported")
    if counts == [last + 1, last]:
        return None
    if counts[0] != counts[1]:
        raise _fail("attention in chunks is not supported")
    return counts[0]


AttentionInterface.register(PROBE, _attention)
AttentionMaskInterface.register(PROBE, _mask)

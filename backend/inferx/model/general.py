"""The general route: decoder-only models of transformers, with our paged attention plugged in.

A step's tokens go through the model as one flat row [1, num_tokens] with their positions; only
attention knows where a request ends. What is not handled is refused by name (general_probe).
Code that a model folder brings (`auto_map`) never runs: only transformers' own classes are used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import transformers
from inferx_kernels import ops
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.models.auto import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from inferx.model.batch import ForwardBatch, KVCache
from inferx.model.config import ModelConfig, RopeConfig
from inferx.model.general_probe import PROBE, LayerAttention, UnsupportedModel, probe_attention
from inferx.model.hf_config import MAX_LAYERS, architecture_of, checkpoint_dtype, eos_token_ids
from inferx.source import ModelSource, load_error

ATTENTION = "inferx_paged"
# With these a config.json could make transformers fetch, run or return something else
_DROPPED = {
    "auto_map", "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "experts_implementation", "_experts_implementation", "use_kernels", "custom_generate",
    "transformers_weights", "distributed_config", "return_dict", "output_attentions",
    "output_hidden_states", "use_cache",
}  # fmt: skip
_ROPE_TYPES = (None, "default", "linear", "llama3", "yarn", "proportional")  # fixed frequencies


def general_config(source: ModelSource, raw: dict[str, Any]) -> ModelConfig:
    """ModelConfig of a model without a fused implementation. Raises ModelLoadError."""
    given = _transformers_config(source, raw)
    max_positions = getattr(given, "max_position_embeddings", None)
    if not isinstance(max_positions, int) or max_positions < 2:
        raise load_error(source, "config.json does not say how long its texts may be")
    num_layers = getattr(given, "num_hidden_layers", None)
    if not isinstance(num_layers, int) or not 1 <= num_layers <= MAX_LAYERS:
        raise load_error(source, f"config.json: num_hidden_layers is {num_layers!r}")
    layers, vocab_size = _probe(source, given, max_positions)
    first = layers[0]
    windows = {layer.window for layer in layers if layer.window is not None}
    if len({(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in layers}) > 1:
        raise load_error(source, "layers with different attention heads are not supported")
    if len(windows) > 1:
        raise load_error(source, "layers with different sliding windows are not supported")
    rope = getattr(given, "rope_parameters", None) or {}
    return ModelConfig(
        architecture=architecture_of(source, raw),
        vocab_size=vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=getattr(given, "intermediate_size", None) or 4 * given.hidden_size,
        num_layers=len(layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        rms_norm_eps=getattr(given, "rms_norm_eps", None) or 1e-6,
        rope=RopeConfig(theta=rope.get("rope_theta") or 10_000.0, rotary_dim=first.head_dim),
        max_position_embeddings=max_positions,
        tie_word_embeddings=bool(given.tie_word_embeddings),
        dtype=checkpoint_dtype(str(raw.get("dtype") or raw.get("torch_dtype"))),
        eos_token_ids=eos_token_ids(source, raw, vocab_size),
        sliding_window=max(windows, default=None),
        layer_sliding=tuple(layer.window is not None for layer in layers) if windows else None,
    )


def _transformers_config(source: ModelSource, raw: dict[str, Any]) -> PretrainedConfig:
    architecture = architecture_of(source, raw)
    model_type = str(raw.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        raise load_error(
            source, f"transformers {transformers.__version__} does not know {architecture}"
        )
    try:
        given = CONFIG_MAPPING[model_type].from_dict(
            {name: value for name, value in raw.items() if name not in _DROPPED}
        )
    except Exception as error:  # each configuration class validates in its own way
        raise load_error(source, f"config.json: {_text(error)}") from None
    known = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(given), None)
    model_class = next((c for c in _as_tuple(known) if c.__name__ == architecture), None)
    if model_class is None or given.is_encoder_decoder or given.get_text_config() is not given:
        raise load_error(source, f"{architecture} is not a decoder-only text model")
    if getattr(model_class, "_is_stateful", False):
        raise load_error(
            source, f"{architecture} has state-space or recurrent layers, which are not supported"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise load_error(
            source, f"{architecture} is not supported: its attention cannot be replaced"
        )
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        raise load_error(source, f"{architecture} is not supported: it takes no position_ids")
    return given


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _probe(
    source: ModelSource, given: PretrainedConfig, max_positions: int
) -> tuple[list[LayerAttention], int]:
    """Every layer's attention, and the number of logits, of the model without its weights."""
    _refuse_rope(source, given)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                given, attn_implementation=PROBE, trust_remote_code=False
            ).eval()
        with torch.inference_mode():
            layers = probe_attention(model, max_positions)
            _, head = _split(model)
            hidden = torch.empty(1, given.hidden_size, dtype=model.dtype, device="meta")
            return layers, head(hidden).shape[-1]
    except UnsupportedModel as error:
        raise load_error(source, f"{type(model).__name__} is not supported: {error}") from None
    except Exception as error:  # sizes in config.json that do not fit together
        raise load_error(source, f"its configuration cannot be built: {_text(error)}") from None


def _refuse_rope(source: ModelSource, given: PretrainedConfig) -> None:
    """Frequencies that follow the longest text in the batch would mix requests."""
    rope = getattr(given, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        rope_type = parameters.get("rope_type") if isinstance(parameters, dict) else None
        if rope_type not in _ROPE_TYPES:
            raise load_error(
                source, f"rotary embeddings of the type {rope_type!r} are not supported"
            )


class GeneralCausalLM:
    """A transformers model behind the interface that the runner calls."""

    def __init__(
        self, source: ModelSource, raw: dict[str, Any], config: ModelConfig, *,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        """Loads the weights. Raises ModelLoadError."""
        self.config = config
        model: nn.Module = _load(source, _transformers_config(source, raw), dtype)
        self._body, self._head = _split(model.to(device))

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, kv: list[KVCache]) -> Tensor:
        """Hidden states after the final norm: [num_tokens, hidden_size]."""
        token = _step.set(_Step.make(self.config, batch, kv))
        try:
            output = self._body(
                input_ids=batch.token_ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=False,
            )
        finally:
            _step.reset(token)
        return output.last_hidden_state[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [num_samples, hidden_size]; returns [num_samples, vocab_size], float32."""
        return self._head(hidden).float()


def _split(model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """(body, head): with its body replaced, the model's own forward is the head alone, whatever
    scaling or capping of logits it has. Raises UnsupportedModel where they do not come apart."""
    prefix = str(model.base_model_prefix)
    body = getattr(model, prefix)
    setattr(model, prefix, _PassThrough())

    def head(hidden: Tensor) -> Tensor:
        try:
            return model(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0]
        except (AttributeError, TypeError) as error:
            raise UnsupportedModel(f"its head cannot be called alone ({error})") from error

    return body, head


class _PassThrough(nn.Module):
    """Stands where the model's body was: its hidden states are what goes in."""

    def forward(
        self, *_: Any, inputs_embeds: Tensor, **__: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> _PassThrough:
        """Models that have a decoder in their body may call it directly."""
        return self


def _load(source: ModelSource, given: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    transformers.utils.logging.disable_progress_bar()
    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source.path,
            config=given,
            dtype=dtype,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors', OSErrors and transformers' own, by the dozen
        text = _text(error).replace(str(source.path), source.label)
        raise load_error(source, f"its weights cannot be loaded: {text}") from None
    model, report = loaded
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(str(name) for name in report.get(kind) or ())
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            adjective = kind.removesuffix("_keys")
            raise load_error(source, f"{adjective} weights: {', '.join(names[:3])}{more}")
    return model.eval()


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class _Step(NamedTuple):
    """What a layer's attention needs of the step that runs."""

    batch: ForwardBatch
    kv: list[KVCache]
    plans: list[ops.AttentionPlan]  # a layer each

    @classmethod
    def make(cls, config: ModelConfig, batch: ForwardBatch, kv: list[KVCache]) -> _Step:
        sliding = config.layer_sliding or (False,) * config.num_layers
        plans = {
            is_sliding: ops.plan_attention(
                batch.block_table,
                batch.seq_lens,
                batch.query_start,
                block_size=kv[0].k.shape[1],
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                sliding_window=config.sliding_window if is_sliding else None,
            )
            for is_sliding in set(sliding)
        }
        return cls(batch, kv, [plans[is_sliding] for is_sliding in sliding])


_step: ContextVar[_Step] = ContextVar("inferx_step")


def _paged_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None,
    scaling: float | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """query: [1, num_heads, num_tokens, head_dim]; key, value: [1, num_kv_heads, ...]. Returns
    [1, num_tokens, num_heads, head_dim]."""
    step = _step.get()
    index: Any = module.layer_idx
    pages = step.kv[index]
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    ops.write_kv(k, v, pages.k, pages.v, step.batch.slot_mapping)
    scale = q.shape[-1] ** -0.5 if scaling is None else scaling
    out = ops.paged_attention(q, pages.k, pages.v, step.plans[index], scale)
    return out.unsqueeze(0), None


AttentionInterface.register(ATTENTION, _paged_attention)

"""ModelConfig out of a Hugging Face folder's config.json, for the fused architectures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from inferx.model.config import ModelConfig
from inferx.model.hf_rope import rope_config
from inferx.source import ModelSource, load_error

FUSED_ARCHITECTURES = {  # and the model_type that goes with each
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
MAX_LAYERS = 4096
_GENERATION = "generation_config.json"
_DTYPES = ("float32", "bfloat16", "float16")

Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class _LlamaLike(msgspec.Struct, kw_only=True):
    """The fields that are read. A default is what transformers takes for the absent field."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-6
    max_position_embeddings: Size
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Size | None = 4096  # unless it is null, or the architecture has none
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def read_json(source: ModelSource, name: str) -> dict[str, Any]:
    """A JSON object of the model's folder. Raises ModelLoadError."""
    try:
        content = msgspec.json.decode((source.path / name).read_bytes())
    except FileNotFoundError:
        raise load_error(source, f"{name} is missing") from None
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise load_error(source, f"{name} is not readable JSON: {_reason(error)}") from None
    if not isinstance(content, dict):
        raise load_error(source, f"{name} holds no JSON object")
    return content


def architecture_of(source: ModelSource, raw: dict[str, Any]) -> str:
    """The class name that config.json gives. Raises ModelLoadError where it gives none."""
    names = raw.get("architectures")
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        return names[0]
    raise load_error(source, "config.json does not name one architecture ('architectures')")


def llama_like_config(source: ModelSource, raw: dict[str, Any]) -> ModelConfig:
    """ModelConfig of one of FUSED_ARCHITECTURES. Raises ModelLoadError."""
    architecture = architecture_of(source, raw)
    model_type = raw.get("model_type", FUSED_ARCHITECTURES[architecture])
    if model_type != FUSED_ARCHITECTURES[architecture]:
        raise load_error(
            source, f"{architecture} with the model_type {model_type!r} is not supported"
        )
    try:
        given = msgspec.convert(raw, _LlamaLike)
    except msgspec.ValidationError as error:
        raise load_error(source, f"config.json: {error}") from None
    if given.hidden_act != "silu":
        raise load_error(
            source, f"{architecture} with the activation {given.hidden_act!r} is not supported"
        )
    num_kv_heads = given.num_key_value_heads or given.num_attention_heads
    if given.num_attention_heads % num_kv_heads:
        raise load_error(
            source,
            f"config.json: {given.num_attention_heads} attention heads "
            f"cannot share {num_kv_heads} key-value heads evenly",
        )
    head_dim = given.head_dim or given.hidden_size // given.num_attention_heads
    if given.head_dim is None and architecture == "Qwen3ForCausalLM":
        head_dim = 128
    if head_dim == 0:
        raise load_error(
            source,
            f"config.json: {given.num_attention_heads} attention heads need a hidden_size of at "
            f"least as much, not {given.hidden_size}",
        )
    sliding_window, layer_sliding = _sliding(source, architecture, given)
    return ModelConfig(
        architecture=architecture,
        vocab_size=given.vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=given.intermediate_size,
        num_layers=given.num_hidden_layers,
        num_heads=given.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=given.rms_norm_eps,
        rope=rope_config(
            source, raw, head_dim=head_dim, max_positions=given.max_position_embeddings
        ),
        max_position_embeddings=given.max_position_embeddings,
        tie_word_embeddings=given.tie_word_embeddings,
        dtype=checkpoint_dtype(given.dtype or given.torch_dtype),
        eos_token_ids=eos_token_ids(source, raw, given.vocab_size),
        attention_bias=architecture == "Qwen2ForCausalLM" or given.attention_bias,
        attention_out_bias=architecture != "Qwen2ForCausalLM" and given.attention_bias,
        mlp_bias=given.mlp_bias,
        qk_norm=architecture == "Qwen3ForCausalLM",
        sliding_window=sliding_window,
        layer_sliding=layer_sliding,
    )


def checkpoint_dtype(name: str | None) -> str:
    """A dtype that ModelConfig knows; float32, which loses nothing, where none is said."""
    name = (name or "float32").removeprefix("torch.")
    return name if name in _DTYPES else "float32"


def _sliding(
    source: ModelSource, architecture: str, given: _LlamaLike
) -> tuple[int | None, tuple[bool, ...] | None]:
    """(window, which layers have it; None: all of them)."""
    if architecture == "LlamaForCausalLM" or given.sliding_window is None:
        return None, None
    if architecture == "MistralForCausalLM":
        return given.sliding_window, None
    if not given.use_sliding_window:
        return None, None
    if given.layer_types is None:
        layers = tuple(i >= given.max_window_layers for i in range(given.num_hidden_layers))
    elif len(given.layer_types) != given.num_hidden_layers:
        raise load_error(
            source,
            f"config.json: layer_types has {len(given.layer_types)} entries "
            f"for {given.num_hidden_layers} layers",
        )
    else:
        for kind in given.layer_types:
            if kind not in ("full_attention", "sliding_attention"):
                raise load_error(source, f"layers of the type {kind!r} are not supported")
        layers = tuple(kind == "sliding_attention" for kind in given.layer_types)
    return (given.sliding_window, layers) if any(layers) else (None, None)


def eos_token_ids(source: ModelSource, raw: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Every id that ends a text: generation_config.json's, config.json's and the tokenizer's.

    Ids that the model has no logit for are left out. Raises ModelLoadError where there is a
    generation_config.json that cannot be read: without its ids a text may never end.
    """
    has_generation = os.path.lexists(source.path / _GENERATION)  # a link may lead nowhere
    found: list[Any] = []
    for config in (read_json(source, _GENERATION) if has_generation else {}, raw):
        ids = config.get("eos_token_id")
        found += ids if isinstance(ids, list) else [ids]
    found.append(_tokenizer_eos(source.path))
    return tuple(dict.fromkeys(id for id in found if type(id) is int and 0 <= id < vocab_size))


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def _tokenizer_eos(folder: Path) -> int | None:
    token = _tokenizer_config(folder).get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        added = msgspec.json.decode(tokenizer, type=_AddedTokens).added_tokens
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # the tokenizer's own loader says what is wrong with it
    return next((entry.id for entry in added if entry.content == token), None)


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode((folder / "tokenizer_config.json").read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # likewise
    return content if isinstance(content, dict) else {}


def _reason(error: Exception) -> str:
    """Without the path that an OSError's text ends in."""
    return (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)

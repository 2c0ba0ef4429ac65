"""A model's weights as a stream of (Hugging Face name, tensor), checked against its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inferx.model.config import Fp8Weights, ModelConfig
from inferx.model.gguf_config import open_gguf
from inferx.model.gguf_weights import gguf_weights
from inferx.model.hf_config import read_json
from inferx.source import ModelSource, load_error

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_NAMES_SHOWN = 3
UNQUANTIZED = (torch.float32, torch.bfloat16, torch.float16)
_E4M3 = (torch.float8_e4m3fn,)

Shapes = dict[str, tuple[int, ...]]


def iter_weights(
    source: ModelSource, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Every weight of a fused architecture exactly once, on the CPU, one tensor at a time.

    GGUF tensors come in `dtype`, safetensors in the checkpoint's. Raises ModelLoadError, before
    the end, at a tensor that is unexpected or of another shape or type, and at the end where one
    is missing.
    """
    if source.format == "gguf":
        stream = gguf_weights(source, open_gguf(source), config, dtype)
    else:
        stream = safetensors_weights(source)
    return checked(source, stream, llama_like_shapes(config))


def checked(
    source: ModelSource,
    weights: Iterable[tuple[str, Tensor]],
    expected: Shapes,
    fp8: Fp8Weights | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Passes on what is expected, in e4m3 what `fp8` says. Raises ModelLoadError like
    `iter_weights`."""
    missing = dict(expected)
    ties = _HEAD not in expected
    tied: list[Tensor] = []
    for name, tensor in weights:
        if ties and name in (_HEAD, _EMBEDDING):
            tied.append(tensor)
        if _is_redundant(name, expected):
            continue
        if name not in expected:
            raise load_error(source, f"its weights have the unexpected tensor {name!r}")
        shape = missing.pop(name, None)
        if shape is None:
            raise load_error(source, f"its weights have the tensor {name!r} twice")
        if tuple(tensor.shape) != shape:
            raise load_error(
                source,
                f"tensor {name!r} has the shape {list(tensor.shape)}: "
                f"its configuration asks for {list(shape)}",
            )
        check_dtype(source, name, tensor, _E4M3 if _is_fp8(name, fp8) else UNQUANTIZED)
        yield name, tensor
    if len(tied) == 2 and not torch.equal(*tied):
        raise load_error(
            source,
            f"its {_HEAD} is not its embedding, as config.json says: "
            "set tie_word_embeddings to false there",
        )
    if missing:
        names = ", ".join(list(missing)[:_NAMES_SHOWN])
        more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
        raise load_error(source, f"its weights lack {names}{more}")


def _is_fp8(name: str, fp8: Fp8Weights | None) -> bool:
    module, _, kind = name.rpartition(".")
    return fp8 is not None and kind == "weight" and fp8.holds(module)


def check_dtype(
    source: ModelSource, name: str, tensor: Tensor, wanted: Sequence[torch.dtype]
) -> None:
    """Raises ModelLoadError where the tensor's type is not among them."""
    if tensor.dtype not in wanted:
        given, *known = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *wanted))
        raise load_error(
            source,
            f"tensor {name!r} is of the type {given}: its configuration asks for "
            f"{' or '.join(known)}",
        )


def llama_like_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every weight of a fused architecture."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {
        _EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes[_HEAD] = (config.vocab_size, hidden)
    linears = {
        "self_attn.q_proj": (q, hidden, config.attention_bias),
        "self_attn.k_proj": (kv, hidden, config.attention_bias),
        "self_attn.v_proj": (kv, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, q, config.attention_out_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{name}.weight"] = (hidden,)
        for name in ("self_attn.q_norm", "self_attn.k_norm") if config.qk_norm else ():
            shapes[f"{prefix}.{name}.weight"] = (config.head_dim,)
    return shapes


def safetensors_weights(
    source: ModelSource, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, Tensor]]:
    """Every wanted tensor of the folder's safetensors files, by name. Raises ModelLoadError."""
    for path in safetensors_files(source):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in filter(wanted, file.keys()):
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise load_error(source, f"{path.name} is damaged: {_one_line(error)}") from None


def safetensors_shapes(source: ModelSource) -> Shapes:
    """Name and shape of every tensor, out of the files' headers. Raises ModelLoadError."""
    shapes: Shapes = {}
    for path in safetensors_files(source):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    shapes[name] = tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError, ValueError) as error:
            raise load_error(source, f"{path.name} is damaged: {_one_line(error)}") from None
    return shapes


def safetensors_files(source: ModelSource) -> list[Path]:
    """The shards that the index names, or the folder's one file. Raises ModelLoadError."""
    folder = source.path
    if not (folder / _INDEX).exists():
        files = sorted(folder.glob("*.safetensors"))
        if (folder / _SINGLE) in files:
            return [folder / _SINGLE]
        if len(files) == 1:
            return files
        raise load_error(source, f"its folder has neither {_SINGLE} nor {_INDEX}")
    weight_map: Any = read_json(source, _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise load_error(source, f"{_INDEX} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise load_error(source, f"{_INDEX} names {name!r}, which is no file of its folder")
        if not (folder / name).is_file():
            raise load_error(source, f"its shard {name} is missing")
    return [folder / name for name in names]


def _is_redundant(name: str, expected: Shapes) -> bool:
    """Buffers that old checkpoints saved, and a tied head that is the embedding once more."""
    if name.endswith((".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")):
        return name not in expected
    return name == _HEAD and name not in expected


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200]

"""A GGUF file's tensors under Hugging Face's names, dequantized a piece at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize
from torch import Tensor

from inferx.gguf_file import GGUFFile, TensorInfo
from inferx.model.config import ModelConfig
from inferx.source import ModelSource, load_error

_SUPPORTED = {
    Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
    Type.Q4_K, Type.Q5_K, Type.Q6_K,
}  # fmt: skip
_PIECE = 1 << 15  # elements dequantized at once: torch copies as many without waking threads
_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NOT_WEIGHTS = {"rope_freqs.weight"}  # told by the configuration
_PERMUTED = {"llama", "mistral"}  # architectures whose q and k llama.cpp's converter reorders


def gguf_weights(
    source: ModelSource, file: GGUFFile, config: ModelConfig, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yields (Hugging Face name, tensor of `dtype` on the CPU), one at a time.

    Raises ModelLoadError at a tensor of a type that is not read, or whose name is unknown.
    """
    for info in file.tensors.values():
        if info.name in _NOT_WEIGHTS:
            continue
        name = hugging_face_name(info.name)
        if name is None:
            raise load_error(source, f"its file has the unexpected tensor {info.name!r}")
        tensor = read_tensor(source, file, info, dtype)
        if file.architecture in _PERMUTED and ".q_proj." in name:
            tensor = _split_halves(tensor, config.num_heads)
        elif file.architecture in _PERMUTED and ".k_proj." in name:
            tensor = _split_halves(tensor, config.num_kv_heads)
        yield name, tensor


def hugging_face_name(name: str) -> str | None:
    """`blk.0.attn_q.weight` -> `model.layers.0.self_attn.q_proj.weight`; None: unknown."""
    block = _BLOCK.fullmatch(name)
    if block is None:
        stem, _, kind = name.rpartition(".")
        return f"{_GLOBAL[stem]}.{kind}" if stem in _GLOBAL and kind == "weight" else None
    layer, stem, kind = block.groups()
    return f"model.layers.{layer}.{_LAYER[stem]}.{kind}" if stem in _LAYER else None


def read_tensor(
    source: ModelSource, file: GGUFFile, info: TensorInfo, dtype: torch.dtype
) -> Tensor:
    """The dequantized tensor. Holds one piece in float32 besides it, never all of it.

    Raises ModelLoadError.
    """
    if info.type not in _SUPPORTED:
        known = ", ".join(sorted(kind.name for kind in _SUPPORTED))
        raise load_error(
            source, f"tensor {info.name!r} is of the type {info.type.name}: {known} are read"
        )
    out = torch.empty(info.shape, dtype=dtype)
    rows = out.view(-1, info.shape[-1])
    row_bytes = info.num_bytes // len(rows)
    step = max(1, _PIECE // info.shape[-1])
    with file.path.open("rb") as stream:
        stream.seek(info.offset)
        for start in range(0, len(rows), step):
            target = rows[start : start + step]
            piece = np.fromfile(stream, np.uint8, row_bytes * len(target))
            if piece.size != row_bytes * len(target):
                raise load_error(source, f"the file is truncated at tensor {info.name!r}")
            values = dequantize(piece.reshape(len(target), row_bytes), info.type)
            target.copy_(torch.from_numpy(values))
    return out


def _split_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Undoes the order of llama.cpp's converter, in which a head's rotated pairs are neighbours;
    Hugging Face keeps the pairs' first elements in the head's first half."""
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)

"""The weights of an fp8 checkpoint: e4m3 numbers, each preceded by its scales."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from inferx.model.config import GATE_UP, QKV, Fp8Weights, ModelConfig
from inferx.model.weights import (
    UNQUANTIZED,
    Shapes,
    check_dtype,
    checked,
    llama_like_shapes,
    safetensors_shapes,
    safetensors_weights,
)
from inferx.source import ModelSource, load_error

_SCALES = (".weight_scale", ".weight_scale_inv")  # both multiply the numbers
# Of activations and of the KV cache: ours are found while running, or 1
_PASSED_OVER = (
    ".input_scale", ".activation_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale",
    ".kv_scale",
)  # fmt: skip


def fp8_weights(
    source: ModelSource, config: ModelConfig, fp8: Fp8Weights
) -> Iterator[tuple[str, Tensor]]:
    """Every weight like `iter_weights`; before an e4m3 one its `.weight_scale` of a floating type,
    [out_features], or [row_blocks, column_blocks] of fp8.block. Scales may lie in other files than
    their weights, so they are read first.

    Raises ModelLoadError where scales are missing, misshapen, or no numbers from 0 up.
    """
    shapes = llama_like_shapes(config)
    _check_fused(source, config, fp8)
    scales = _read_scales(source, fp8, shapes)
    weights = safetensors_weights(source, lambda name: not name.endswith((*_SCALES, *_PASSED_OVER)))
    for name, tensor in checked(source, weights, shapes, fp8):
        module, _, kind = name.rpartition(".")
        if kind == "weight" and module in scales:
            yield f"{module}.weight_scale", scales.pop(module)
        yield name, tensor


def _check_fused(source: ModelSource, config: ModelConfig, fp8: Fp8Weights) -> None:
    for layer in range(config.num_layers):
        for names in (QKV, GATE_UP):
            modules = [f"model.layers.{layer}.{name}" for name in names]
            if len({fp8.holds(module) for module in modules}) > 1:
                raise load_error(
                    source,
                    f"its quantization_config ignores some of {', '.join(modules)}, which are "
                    "computed as one: all of them or none have to be quantized",
                )


def _read_scales(source: ModelSource, fp8: Fp8Weights, shapes: Shapes) -> dict[str, Tensor]:
    """The scales by module. Shapes are checked before anything is read."""
    names: dict[str, str] = {}
    modules: set[str] = set()
    for name, shape in safetensors_shapes(source).items():
        module, _, kind = name.rpartition(".")
        if f".{kind}" not in _SCALES:
            continue
        weight = shapes.get(f"{module}.weight")
        if weight is None or not fp8.holds(module) or module in modules:
            raise load_error(source, f"its weights have the unexpected tensor {name!r}")
        if shape not in _scale_shapes(weight, fp8.block):
            raise load_error(
                source,
                f"tensor {name!r} has the shape {list(shape)}, which is no scale, nor one a row or "
                f"block of a weight of the shape {list(weight)}",
            )
        names[name] = module
        modules.add(module)
    scales: dict[str, Tensor] = {}
    for name, tensor in safetensors_weights(source, lambda name: name in names):
        module = names[name]
        scales[module] = _scale(source, name, tensor, shapes[f"{module}.weight"][0])
    for name in shapes:
        module, _, kind = name.rpartition(".")
        if kind == "weight" and fp8.holds(module) and module not in scales:
            raise load_error(source, f"its weights lack {module}.weight_scale")
    return scales


def _scale_shapes(weight: tuple[int, ...], block: tuple[int, int] | None) -> set[tuple[int, ...]]:
    rows, columns = weight
    if block is not None:
        return {(-(-rows // block[0]), -(-columns // block[1]))}
    return {(), (1,), (1, 1), (rows,), (rows, 1)}


def _scale(source: ModelSource, name: str, tensor: Tensor, rows: int) -> Tensor:
    """One scale, or one a row, as [rows]; blocks' as they are."""
    check_dtype(source, name, tensor, UNQUANTIZED)
    if not bool((tensor.isfinite() & (tensor >= 0)).all()):
        raise load_error(source, f"tensor {name!r} is damaged: a scale is negative or no number")
    if tensor.numel() == 1:
        return tensor.reshape(1).expand(rows)
    return tensor.squeeze(1) if tensor.ndim == 2 and tensor.shape == (rows, 1) else tensor

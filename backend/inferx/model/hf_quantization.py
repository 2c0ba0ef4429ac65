"""Fp8Weights out of config.json's quantization_config. Every other quantization is refused by name.

Two methods are read:

- "fp8", as transformers' FineGrainedFP8Config and vLLM write it: scales per tensor, or per block
  (weight_block_size);
- "compressed-tensors" in the format "float-quantized": scales per tensor, output feature or block.

Activations are always quantized per token, by their own largest magnitude: static input scales,
and those of an activation's groups, are passed over.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from inferx.model.config import Fp8Weights
from inferx.source import ModelSource, load_error

_BlockSize = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=2**12)]
_MAX_REPEATS = 4


class _Fp8(msgspec.Struct):
    """quant_method "fp8". Two names are in use for what stays as it is."""

    weight_block_size: tuple[_BlockSize, _BlockSize] | None = None
    modules_to_not_convert: _Names | None = None
    ignored_layers: _Names | None = None
    scale_fmt: str = "float"


class _Numbers(msgspec.Struct):
    """How a group of compressed-tensors stores weights, or takes activations."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    block_structure: tuple[_BlockSize, _BlockSize] | None = None


class _Group(msgspec.Struct):
    targets: _Names
    weights: _Numbers | None = None
    input_activations: _Numbers | None = None


class _CompressedTensors(msgspec.Struct):
    config_groups: dict[str, _Group]
    format: str | None = None
    ignore: _Names | None = None


def fp8_weights_config(source: ModelSource, given: Any) -> Fp8Weights:
    """Raises ModelLoadError at what is not read, naming it."""
    method = given.get("quant_method") if isinstance(given, dict) else None
    try:
        if method == "fp8":
            return _fp8(source, msgspec.convert(given, _Fp8))
        if method == "compressed-tensors":
            return _compressed_tensors(source, msgspec.convert(given, _CompressedTensors))
    except msgspec.ValidationError as error:
        raise load_error(source, f"config.json, quantization_config: {error}") from None
    raise load_error(source, f"weights quantized by {method!r} are not supported")


def _fp8(source: ModelSource, given: _Fp8) -> Fp8Weights:
    if given.scale_fmt != "float":
        raise load_error(source, f"fp8 weights with {given.scale_fmt!r} scales are not supported")
    names = [*(given.modules_to_not_convert or ()), *(given.ignored_layers or ())]
    ignored = tuple(_module_and_below(name) for name in names)
    return Fp8Weights(stored=True, block=given.weight_block_size, ignored=ignored)


def _compressed_tensors(source: ModelSource, given: _CompressedTensors) -> Fp8Weights:
    groups = list(given.config_groups.values())
    unread = _unread(given, groups)
    if unread:
        raise load_error(source, f"compressed-tensors {unread} are not supported")
    weights = groups[0].weights
    assert weights is not None
    ignored = tuple(_named(source, name) for name in given.ignore or ())
    return Fp8Weights(stored=True, block=weights.block_structure, ignored=ignored)


def _unread(given: _CompressedTensors, groups: list[_Group]) -> str | None:
    """What is not read of it."""
    if given.format != "float-quantized":
        return f"in the format {given.format!r}"
    if len(groups) != 1:
        return f"with {len(groups)} groups"
    [group] = groups
    if group.targets != ["Linear"]:
        return f"with the targets {group.targets}"
    if group.weights is None or not (_is_e4m3(group.weights) and _is_e4m3(group.input_activations)):
        return "of which weights and input activations are not both 8-bit floating-point numbers"
    strategy, block = group.weights.strategy, group.weights.block_structure
    known = ("tensor", "channel") if block is None else ("block",)
    return None if strategy in known else f"with a scale a {strategy} and the blocks {block}"


def _is_e4m3(numbers: _Numbers | None) -> bool:
    return numbers is not None and (numbers.type, numbers.num_bits) == ("float", 8)


def _module_and_below(name: str) -> re.Pattern[str]:
    """transformers' rule: a module's name, the beginning of one at a dot, or the end of one."""
    literal = re.escape(name)
    return re.compile(rf"{literal}(?:\.|\Z)|.*{literal}\Z")


def _named(source: ModelSource, name: str) -> re.Pattern[str]:
    """compressed-tensors' rule: a module's name, or a regular expression after "re:"."""
    if not name.startswith("re:"):
        return re.compile(rf"{re.escape(name)}\Z")
    expression = name.removeprefix("re:")
    # A few plain repeats: what matches a name in no time, whoever wrote it
    repeats = re.findall(r"(?<!\\)[*+?{]", expression)
    if len(repeats) > _MAX_REPEATS or re.search(r"\)[*+{]|\\\d", expression):
        raise load_error(
            source,
            f"config.json, quantization_config: the expression {expression!r} in 'ignore' repeats "
            "too much: name the modules",
        )
    try:
        return re.compile(expression)
    except re.error as error:
        raise load_error(
            source,
            f"config.json, quantization_config: {expression!r} in 'ignore' is no regular "
            f"expression: {error}",
        ) from None

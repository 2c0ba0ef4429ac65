"""RopeConfig out of config.json's settings, of which transformers has had three generations."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from inferx.model.config import RopeConfig
from inferx.model.rope import SUPPORTED_ROPE_TYPES
from inferx.source import ModelSource, load_error

DEFAULT_THETA = 10_000.0
_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_SETTINGS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
    "yarn": (
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate",
    ),
}  # fmt: skip

Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
Theta = Annotated[float, msgspec.Meta(gt=1, lt=1e30)]
Length = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class _Parameters(msgspec.Struct, kw_only=True):
    """`rope_parameters` since transformers 5; `rope_scaling` before, without theta; `type` is the
    oldest name of `rope_type`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Theta | None = None
    partial_rotary_factor: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Length | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


class _Given(msgspec.Struct, kw_only=True):
    rope_theta: Theta | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: Positive | None = None
    original_max_position_embeddings: Length | None = None


def rope_config(
    source: ModelSource, raw: dict[str, Any], *, head_dim: int, max_positions: int
) -> RopeConfig:
    """raw: config.json. Raises ModelLoadError, naming what is missing, mistyped or unsupported."""
    try:
        outer = msgspec.convert(raw, _Given)
        settings = outer.rope_scaling or outer.rope_parameters or {}
        given = msgspec.convert(settings, _Parameters)
    except msgspec.ValidationError as error:
        raise load_error(source, f"config.json: rotary embeddings: {error}") from None
    if any(isinstance(value, dict) for value in settings.values()):
        raise load_error(source, "rotary embeddings that differ between layers are not supported")
    rope_type = given.rope_type or given.type or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise load_error(source, f"rotary embeddings of the type {rope_type!r} are not supported")
    if (given.partial_rotary_factor or outer.partial_rotary_factor or 1.0) != 1.0:
        raise load_error(source, "partial rotary embeddings are not supported for its architecture")
    if head_dim % 2:
        raise load_error(
            source, f"config.json: rotary embeddings need an even head_dim, not {head_dim}"
        )
    for name in _NEEDS.get(rope_type, ()):
        if getattr(given, name) is None:
            raise load_error(source, f"config.json: {rope_type} rotary embeddings need {name!r}")
    if rope_type == "llama3" and (given.low_freq_factor or 0) >= (given.high_freq_factor or 0):
        raise load_error(source, "config.json: low_freq_factor is not below high_freq_factor")
    given.original_max_position_embeddings = (
        outer.original_max_position_embeddings
        or given.original_max_position_embeddings
        or max_positions
    )
    scaling: dict[str, Any] = {}
    if rope_type != "default":
        values = {name: getattr(given, name) for name in _SETTINGS[rope_type]}
        scaling = {"rope_type": rope_type}
        scaling |= {name: value for name, value in values.items() if value is not None}
    theta = given.rope_theta or outer.rope_theta or DEFAULT_THETA
    return RopeConfig(theta=theta, rotary_dim=head_dim, scaling=scaling)

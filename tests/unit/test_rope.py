"""Rotary frequencies equal transformers', bit by bit up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from inferx.model.registry import load_config
from inferx.model.rope import rope_frequencies
from inferx.source import source_at
from tiny_models import make_tiny_model
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with an attention factor": YARN | {"attention_factor": 0.75},
    "yarn with mscale": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0},
    "yarn with betas": YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": YARN | {"truncate": False},
    "yarn with factor 1": YARN | {"factor": 1.0},
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
@pytest.mark.parametrize(("theta", "head_dim"), [(10_000.0, 64), (500_000.0, 128), (1e6, 80)])
def test_frequencies_equal_transformers(
    scaling: dict[str, Any], theta: float, head_dim: int, tmp_path: Path
) -> None:
    rope = dict(scaling, rope_theta=theta)
    make_tiny_model(
        tmp_path,
        "llama",
        head_dim=head_dim,
        num_hidden_layers=1,
        max_position_embeddings=32768,
        rope_parameters=dict(rope),
    )
    reference = LlamaConfig.from_pretrained(tmp_path)
    if scaling["rope_type"] == "default":
        expected, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(reference)
    else:
        expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](reference)
    frequencies, attention_scaling = rope_frequencies(load_config(source_at(tmp_path)))
    assert frequencies.dtype == torch.float32
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert attention_scaling == pytest.approx(factor, rel=1e-12)

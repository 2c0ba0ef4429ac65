"""load_format: dummy. A config.json suffices, and the model runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_loop import serve, tokens_of
from inferx.config import EngineConfig
from inferx.engine.process import load_engine
from inferx.engine.sampling import SamplingParams
from inferx.errors import ModelLoadError
from inferx.model.dummy_weights import dummy_weights
from inferx.model.registry import load_config
from inferx.model.weights import llama_like_shapes
from inferx.source import resolve, source_at
from tiny_models import tiny_config

CPU = torch.device("cpu")


def write_config(folder: Path, family: str, architecture: str) -> Path:
    config = {**tiny_config(family).to_dict(), "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_config(tmp_path, "qwen3", "Qwen3ForCausalLM")


def settings(folder: Path) -> EngineConfig:
    return EngineConfig.from_mapping(
        {"model": str(folder), "load_format": "dummy", "device": "cpu", "dtype": "float32"}
    )


def test_there_is_a_tensor_for_every_name_of_the_shape_and_type_asked_for(folder: Path) -> None:
    config = load_config(source_at(folder, needs_weights=False))
    weights = dict(dummy_weights(config, torch.bfloat16, CPU))
    assert {name: tuple(t.shape) for name, t in weights.items()} == llama_like_shapes(config)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    embedding = weights["model.embed_tokens.weight"].float()
    assert embedding.std() == pytest.approx(0.02, rel=0.02)
    for norm in ("model.norm.weight", "model.layers.0.self_attn.q_norm.weight"):
        assert weights[norm].float().mean() == pytest.approx(1, abs=0.02)


def test_they_are_the_same_every_time(folder: Path) -> None:
    config = load_config(source_at(folder, needs_weights=False))
    first, second = (dict(dummy_weights(config, torch.float32, CPU)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_engine_runs_from_a_config_json_alone(folder: Path) -> None:
    engine = load_engine(settings(folder))
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    [outputs] = serve(engine.core, [[1, 2, 3]], params)
    engine.runner.close()
    assert len(tokens_of(outputs)) == 5


def test_without_the_setting_a_config_json_is_no_model(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="neither safetensors nor GGUF weights"):
        resolve(str(folder), roots=[folder])
    resolved = resolve(str(folder), roots=[folder], needs_weights=False)
    assert resolved.format == "huggingface"


def test_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    write_config(tmp_path, "phi3", "Phi3ForCausalLM")
    with pytest.raises(ModelLoadError, match="'dummy', which Phi3ForCausalLM does not have"):
        load_engine(settings(tmp_path))

"""The general route: transformers' models over our pages, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from inferx.errors import ModelLoadError
from inferx.model.registry import load_config, load_model
from inferx.source import ModelSource, source_at
from paged import PagedRun
from safetensors.torch import load_file, save_file
from tiny_models import GENERAL, VOCAB_SIZE, make_tiny_model, tiny_config
from transformers.models.auto import MODEL_FOR_CAUSAL_LM_MAPPING

CPU = torch.device("cpu")


def tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB_SIZE, (count,), generator=generator).tolist()


@pytest.mark.parametrize("family", GENERAL)
@torch.inference_mode()
def test_logits_equal_transformers_for_prefill_chunks_and_decode(
    family: str, tmp_path: Path
) -> None:
    reference = make_tiny_model(tmp_path, family)
    source = source_at(tmp_path)
    config = load_config(source)
    run = PagedRun(load_model(source, config, dtype=torch.float32, device=CPU))
    a, b, c = tokens(40, 1), tokens(29, 2), tokens(3, 3)
    parts = [
        run.step({"a": a[:38]}),
        run.step({"b": b[:11], "c": c[:1]}),
        run.step({"a": a[38:39], "b": b[11:28], "c": c[1:]}),
        run.step({"b": b[28:], "a": a[39:]}),
    ]
    for name, ids in {"a": a, "b": b, "c": c}.items():
        ours = torch.cat([part[name] for part in parts if name in part])
        assert ours.dtype == torch.float32
        theirs = reference(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_another_dtype_than_the_checkpoints_is_loaded(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2", dtype="bfloat16")
    source = source_at(tmp_path)
    config = load_config(source)
    assert config.dtype == "bfloat16"
    model = load_model(source, config, dtype=torch.float32, device=CPU)
    logits = PagedRun(model).step({"a": tokens(5, 1)})["a"]
    assert logits.shape == (5, VOCAB_SIZE)
    assert bool(logits.isfinite().all())


def test_code_and_kernels_that_a_folder_names_are_never_fetched_or_run(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2")
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Model",
    }
    config["attn_implementation"] = config["_attn_implementation"] = "evil/kernel"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    source = source_at(tmp_path)
    load_model(source, load_config(source), dtype=torch.float32, device=CPU)
    assert not (tmp_path / "ran").exists()


def test_weights_that_do_not_belong_are_named(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2")
    source = source_at(tmp_path, "the-model")
    config = load_config(source)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.extra"] = weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"missing weights: model\.norm\.weight"):
        load_model(source, config, dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("length", [4, 100, 5000])
def test_truncated_weights_are_one_sentence_without_a_path(length: int, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2")
    source = source_at(tmp_path, "the-model")
    config = load_config(source)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelLoadError, match="model 'the-model': ") as caught:
        load_model(source, config, dtype=torch.float32, device=CPU)
    assert str(tmp_path) not in str(caught.value)


def refusal(folder: Path, family: str, **overrides: Any) -> str:
    config = tiny_config(family, **overrides)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    with pytest.raises(ModelLoadError) as caught:
        load_config(ModelSource(folder, "huggingface", "the-model"))
    text = str(caught.value)
    assert text.startswith("model 'the-model': ")
    assert "\n" not in text
    return text


NO_KV_HEADS: dict[str, Any] = {"num_key_value_heads": None}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "gemma2": ({"head_dim": 16}, "soft cap"),
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 16}, "mixtures of experts"),
    "mixtral": ({"num_local_experts": 4}, "mixtures of experts"),
    "mamba": (NO_KV_HEADS, "state-space"),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "convolution"),
    "deepseek_v3": (
        {"q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 4, "first_k_dense_replace": 1},
        "mixtures of experts",
    ),
    "minicpm3": (
        {"q_lora_rank": 16, "kv_lora_rank": 16, "num_key_value_heads": 4},
        "differ in size",
    ),
    "diffllama": ({}, "exactly one attention"),
    "stablelm": ({}, "cannot be replaced"),
    "bert": (NO_KV_HEADS, "pattern of its attention mask"),
    "bart": ({}, "not a decoder-only"),
}


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_what_is_not_handled_is_refused_by_name(family: str, tmp_path: Path) -> None:
    overrides, says = UNSUPPORTED[family]
    assert says in refusal(tmp_path, family, **overrides)

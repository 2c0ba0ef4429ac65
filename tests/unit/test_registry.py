"""The fused route, from a folder to logits: the same as transformers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inferx.errors import ModelLoadError
from inferx.model.llama import LlamaForCausalLM
from inferx.model.registry import load_config, load_model
from inferx.source import source_at
from paged import PagedRun
from tiny_models import FUSED, VOCAB_SIZE, make_tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", FUSED)
@torch.inference_mode()
def test_logits_equal_transformers_for_prefill_chunks_and_decode(
    family: str, tmp_path: Path
) -> None:
    reference = make_tiny_model(tmp_path, family)
    source = source_at(tmp_path)
    model = load_model(source, load_config(source), dtype=torch.float32, device=CPU)
    assert isinstance(model, LlamaForCausalLM)
    run = PagedRun(model)
    ids = torch.randint(0, VOCAB_SIZE, (2, 33), generator=torch.Generator().manual_seed(1))
    a, b = ids.tolist()
    parts = [
        run.step({"a": a[:32], "b": b[:1]}),
        run.step({"a": a[32:], "b": b[1:20]}),
        run.step({"b": b[20:]}),
    ]
    expected = reference(ids).logits
    for row, name in enumerate(("a", "b")):
        ours = torch.cat([part[name] for part in parts if name in part])
        torch.testing.assert_close(ours, expected[row], atol=1e-4, rtol=1e-4)


def test_a_model_larger_than_memory_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path)
    source = source_at(tmp_path, "the-model")
    monkeypatch.setattr("inferx.model.footprint.available_memory", lambda device: 1000)
    with pytest.raises(ModelLoadError, match="model 'the-model': its weights take"):
        load_model(source, load_config(source), dtype=torch.float32, device=CPU)

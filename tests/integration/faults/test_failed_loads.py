"""A model that cannot be loaded is refused in one sentence that names it, and Triton stays up."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from inferx.triton.server import TritonServer, write_model_repository
from inferx.triton.server_log import load_failure
from safetensors.torch import load_file, save_file
from served import Served, post
from tiny_models import make_tiny_model, write_tiny_gguf

Folder = Callable[..., Path]


@pytest.fixture
def refusal(server: TritonServer, smollm2: Served, request: Any) -> Any:
    """Loads a model that has to fail; the sentence, without Triton's words around it."""
    names: list[str] = []

    def load(settings: dict[str, Any] | str, prepare: Callable[[Path], object] = id) -> str:
        name = f"bad_{request.node.name.partition('[')[0].removeprefix('test_')[:40]}_{len(names)}"
        names.append(name)
        as_json = {} if isinstance(settings, str) else settings
        write_model_repository(server.repository, name, as_json)
        version = server.repository / name / "1"
        if isinstance(settings, str):
            (version / "model.json").write_text(settings)
        prepare(version)
        status, answer = post(server, f"/v2/repository/models/{name}/load", {})
        assert status == 400, answer
        index = post(server, "/v2/repository/index", {})[1]
        reason = next(model["reason"] for model in index if model["name"] == name)  # type: ignore[index]
        sentence = load_failure(name, reason)
        assert repr(name) in sentence
        assert "Traceback" not in sentence
        assert sentence.count("\n") == 0
        assert len(sentence) < 500
        assert str(server.repository) not in sentence, "no path of the server"
        return sentence

    yield load
    assert smollm2.generate("One two", max_tokens=1).num_output_tokens == [1]
    for name in names:
        shutil.rmtree(server.repository / name)


def copied(tiny_folder: Path, change: Callable[[Path], object]) -> Callable[[Path], None]:
    def prepare(version: Path) -> None:
        shutil.copytree(tiny_folder, version / "weights")
        change(version / "weights")

    return prepare


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


WEIGHTS = {"model": "weights"}


def test_a_missing_folder(refusal: Any) -> None:
    assert "'nowhere': there is no such file or folder" in refusal({"model": "nowhere"})


def test_a_missing_package(refusal: Any) -> None:
    assert "no Python package 'no_such'" in refusal({"model": "package:no_such"})


def test_an_empty_folder(refusal: Any) -> None:
    sentence = refusal(WEIGHTS, lambda version: (version / "weights").mkdir())
    assert "'weights': its folder has neither safetensors nor GGUF weights" in sentence


@pytest.mark.parametrize("left", [3, 5000, -100])
def test_a_truncated_gguf_file(refusal: Any, tmp_path: Path, left: int) -> None:
    write_tiny_gguf(tmp_path / "whole.gguf", make_tiny_model(tmp_path / "model"))
    data = (tmp_path / "whole.gguf").read_bytes()

    def prepare(version: Path) -> None:
        (version / "cut.gguf").write_bytes(data[:left])

    sentence = refusal({"model": "cut.gguf"}, prepare)
    assert "'cut.gguf'" in sentence
    assert "unexpected" not in sentence


@pytest.mark.parametrize("number_at", [8, 16])
def test_a_gguf_header_with_overflowing_counts(
    refusal: Any, tmp_path: Path, number_at: int
) -> None:
    write_tiny_gguf(tmp_path / "whole.gguf", make_tiny_model(tmp_path / "model"))
    data = bytearray((tmp_path / "whole.gguf").read_bytes())
    data[number_at : number_at + 8] = struct.pack("<Q", 2**63 + 5)

    sentence = refusal(
        {"model": "huge.gguf"}, lambda version: (version / "huge.gguf").write_bytes(data)
    )
    assert "'huge.gguf'" in sentence
    assert "unexpected" not in sentence


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)


def truncate_header(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 100)


def overflow_header(folder: Path) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(struct.pack("<Q", 2**62) + data[8:])


def overflow_tensor(folder: Path) -> None:
    header = {"lm_head.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))


@pytest.mark.parametrize("damage", [truncate, truncate_header, overflow_header, overflow_tensor])
def test_damaged_safetensors(refusal: Any, tiny_folder: Path, damage: Callable[..., None]) -> None:
    sentence = refusal(WEIGHTS, copied(tiny_folder, damage))
    assert "'weights'" in sentence
    assert "unexpected" not in sentence


def test_weights_that_lack_a_tensor(refusal: Any, tiny_folder: Path) -> None:
    def drop(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.1.self_attn.k_proj.weight"]
        save_file(tensors, folder / "model.safetensors")

    sentence = refusal(WEIGHTS, copied(tiny_folder, drop))
    assert "model.layers.1.self_attn.k_proj.weight" in sentence


def test_an_unsupported_architecture(refusal: Any, tiny_folder: Path) -> None:
    change = edit_config(architectures=["UnheardOfForCausalLM"], model_type="unheard_of")
    sentence = refusal(WEIGHTS, copied(tiny_folder, change))
    assert "'weights'" in sentence
    assert "UnheardOfForCausalLM" in sentence or "unheard_of" in sentence


def test_weights_in_pickles_are_not_opened(refusal: Any, tiny_folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self) -> Any:
            return Path.touch, (canary,)

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save({"lm_head.weight": Attack()}, folder / "pytorch_model.bin")

    sentence = refusal(WEIGHTS, copied(tiny_folder, pickled))
    assert "pytorch_model.bin" in sentence
    assert "pickle" in sentence
    assert not canary.exists()


@pytest.mark.parametrize("architecture", ["EvilForCausalLM", "GPT2LMHeadModel"])
def test_code_in_a_model_folder_is_not_run(
    refusal: Any, tiny_folder: Path, tmp_path: Path, architecture: str
) -> None:
    canary = tmp_path / "canary"

    def add_code(folder: Path) -> None:
        code = f"from pathlib import Path\nPath({str(canary)!r}).touch()\n"
        for module in ("modeling_evil", "configuration_evil", "tokenization_evil"):
            (folder / f"{module}.py").write_text(code)
        edit_config(
            architectures=[architecture],
            model_type="evil",
            auto_map={
                "AutoConfig": "configuration_evil.EvilConfig",
                "AutoModelForCausalLM": "modeling_evil.EvilForCausalLM",
            },
        )(folder)
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]}})
        )

    assert "'weights'" in refusal(WEIGHTS, copied(tiny_folder, add_code))
    assert not canary.exists()


@pytest.mark.parametrize("path", ["../../smollm2", "../../../..", "/etc", "weights/../../.."])
def test_a_path_out_of_the_model_s_folder(refusal: Any, path: str) -> None:
    sentence = refusal({"model": path}, lambda version: (version / "weights").mkdir())
    assert repr(path) in sentence
    assert "outside" in sentence


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_model_s_folder(refusal: Any, tiny_folder: Path, name: str) -> None:
    def link(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(tiny_folder / name)

    sentence = refusal(WEIGHTS, copied(tiny_folder, link))
    assert f"{name} is a link that leads outside" in sentence


def test_a_model_larger_than_memory(refusal: Any, tiny_folder: Path) -> None:
    change = edit_config(hidden_size=65_536, intermediate_size=262_144, num_hidden_layers=400)
    sentence = refusal(WEIGHTS, copied(tiny_folder, change))
    assert "'weights'" in sentence
    assert "GB" in sentence
    assert "memory" in sentence


def test_a_pool_that_does_not_fit(refusal: Any, tiny_folder: Path) -> None:
    settings = {**WEIGHTS, "max_model_len": 512, "num_gpu_blocks_override": 2}
    sentence = refusal(settings, copied(tiny_folder, id))
    assert "512 tokens" in sentence


def test_max_model_len_beyond_the_model(refusal: Any, tiny_folder: Path) -> None:
    sentence = refusal({**WEIGHTS, "max_model_len": 10_000}, copied(tiny_folder, id))
    assert "10000" in sentence
    assert "512" in sentence


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"max_num_seq": 8}, ["'max_num_seq'", "did you mean 'max_num_seqs'"]),
        ({"gpu_memory_utilisation": 0.5}, ["did you mean 'gpu_memory_utilization'"]),
        ({"max_num_seqs": "many"}, ["'max_num_seqs'", "int"]),
        ({"max_num_seqs": 0}, ["'max_num_seqs'", ">= 1"]),
        ({"enable_prefix_caching": 3}, ["'enable_prefix_caching'", "bool"]),
        ({"dtype": "float8"}, ["'dtype'", "float8"]),
        ({"block_size": 24}, ["block_size is 24", "multiple of 16"]),
        ('{"model": ', ["model.json", "JSON"]),
        ("[]", ["model.json", "object"]),
        ("{}", ["'model' is missing"]),
        ('{"engine": "synthetic"}', ["'tokenizer'"]),
    ],
)
def test_a_wrong_model_json_names_the_setting(refusal: Any, settings: Any, parts: Any) -> None:
    given = settings if isinstance(settings, str) else {"model": "weights", **settings}
    sentence = refusal(given)
    for part in parts:
        assert part in sentence


def test_a_missing_model_json(refusal: Any) -> None:
    sentence = refusal({}, lambda version: (version / "model.json").unlink())
    assert "model.json is missing" in sentence


def test_a_damaged_tokenizer(refusal: Any, tiny_folder: Path) -> None:
    def damage(folder: Path) -> None:
        (folder / "tokenizer.json").write_text('{"model": {}')

    sentence = refusal(WEIGHTS, copied(tiny_folder, damage))
    assert "'weights'" in sentence
    assert "tokenizer" in sentence

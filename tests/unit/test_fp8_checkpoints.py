"""fp8 checkpoints, written here as the tools that make them do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_fp8 import assert_close_but_for_flips, linears, rounded_by_row, with_fp8_linears
from inferx.errors import ModelLoadError
from inferx.model.footprint import weight_bytes
from inferx.model.registry import load_config, load_model
from inferx.source import ModelSource, source_at
from paged import PagedRun
from safetensors.torch import load_file, save_file
from tiny_models import make_tiny_model
from torch import Tensor
from transformers import PreTrainedModel

CPU = torch.device("cpu")
E4M3 = torch.float8_e4m3fn
BLOCK = (32, 48)  # of weights of 32 to 96 rows and 64 or 96 columns
MLP = "model.layers.0.mlp.down_proj"
Q, K = "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"

Stored = dict[str, Tensor]


def per_tensor(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().max() / 448
    return (weight / scale).to(E4M3), scale


def per_row(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    return (weight / scale).to(E4M3), scale


def per_block(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight: whole blocks' rows, and columns that end in part of one."""
    rows, columns = -(-weight.shape[0] // BLOCK[0]), -(-weight.shape[1] // BLOCK[1])
    padded = torch.zeros(rows * BLOCK[0], columns * BLOCK[1])
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.view(rows, BLOCK[0], columns, BLOCK[1])
    scale = blocks.abs().amax((1, 3)) / 448
    numbers = (blocks / scale[:, None, :, None]).view(padded.shape)
    return numbers[: weight.shape[0], : weight.shape[1]].to(E4M3), scale


def values(numbers: Tensor, scale: Tensor) -> Tensor:
    if scale.numel() > 1 and scale.shape[-1] > 1:
        scale = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
        scale = scale[: numbers.shape[0], : numbers.shape[1]]
    return numbers.float() * scale


def hf_fp8(**settings: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", **settings}


def compressed_tensors(strategy: str, **settings: Any) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": strategy, "dynamic": False},
        "input_activations": {**numbers, "strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **settings,
    }


FORMATS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], str, dict[str, Any]]] = {
    "fp8, blocks": (per_block, "weight_scale_inv", hf_fp8(weight_block_size=list(BLOCK))),
    "fp8, tensors": (per_tensor, "weight_scale", hf_fp8()),
    "fp8, tensors, static activations": (
        per_tensor, "weight_scale",
        hf_fp8(activation_scheme="static", ignored_layers=["lm_head"]),
    ),
    "compressed-tensors, rows": (per_row, "weight_scale", compressed_tensors("channel")),
    "compressed-tensors, tensors": (per_tensor, "weight_scale", compressed_tensors("tensor")),
}  # fmt: skip


class Checkpoint:
    """A tiny Llama's folder, quantized; `tensors` are what its file holds."""

    def __init__(self, folder: Path, kind: str, without: tuple[str, ...] = (), **settings: Any):
        self.reference: PreTrainedModel = make_tiny_model(folder)
        self.source: ModelSource = source_at(folder, "the-model")
        quantize, scale_name, config = FORMATS[kind]
        self.tensors: Stored = load_file(folder / "model.safetensors")
        self.values: Stored = {}
        for name, module in linears(self.reference).items():
            if name in without:
                continue
            numbers, scale = quantize(module.weight.detach())
            self.values[name] = values(numbers, scale)
            self.tensors[f"{name}.weight"] = numbers
            self.tensors[f"{name}.{scale_name}"] = scale.clone()
            if "static" in kind:
                self.tensors[f"{name}.input_scale"] = torch.tensor(0.01)
        self.config = {**config, **settings}
        self.write()

    def write(self) -> None:
        path = self.source.path / "config.json"
        raw = json.loads(path.read_text()) | {"quantization_config": self.config}
        path.write_text(json.dumps(raw))
        save_file(self.tensors, self.source.path / "model.safetensors")

    def load(self, dtype: torch.dtype = torch.float32) -> PagedRun:
        model = load_model(self.source, load_config(self.source), dtype=dtype, device=CPU)
        return PagedRun(model)

    def refusal(self) -> str:
        self.write()
        with pytest.raises(ModelLoadError) as caught:
            self.load()
        text = str(caught.value)
        assert text.startswith("model 'the-model': ")
        assert "\n" not in text
        return text


@pytest.mark.parametrize("kind", FORMATS)
@torch.inference_mode()
def test_logits_are_those_of_the_stored_values(kind: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, kind)
    values = checkpoint.values
    if "blocks" in kind:  # they are rounded once more, by row
        values = {name: rounded_by_row(value) for name, value in values.items()}
    with_fp8_linears(checkpoint.reference, values)
    ids = torch.randint(0, 250, (33,), generator=torch.Generator().manual_seed(1)).tolist()
    run = checkpoint.load()
    got = torch.cat([run.step({"a": ids[:20]})["a"], run.step({"a": ids[20:]})["a"]])
    expected = checkpoint.reference(torch.tensor([ids])).logits[0]
    assert_close_but_for_flips(got, expected)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if "blocks" not in kind])
def test_numbers_with_a_scale_a_tensor_or_row_are_kept(kind: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, kind)
    packed = checkpoint.load(torch.bfloat16).model.layers[1].qkv_proj.packed
    rows = [f"model.layers.1.self_attn.{name}_proj" for name in "qkv"]
    stored = torch.cat([checkpoint.tensors[f"{name}.weight"] for name in rows])
    assert torch.equal(packed.weight.view(torch.uint8), stored.view(torch.uint8))
    scales = [checkpoint.tensors[f"{name}.weight_scale"] for name in rows]
    sizes = [len(checkpoint.tensors[f"{name}.weight"]) for name in rows]
    expected = [s.flatten().expand(n) for s, n in zip(scales, sizes, strict=True)]
    assert torch.equal(packed.weight_scale, torch.cat(expected))


@pytest.mark.parametrize(
    "ignore", [["lm_head", MLP], ["re:.*lm_head", r"re:model\.layers\.0\.mlp.down.*"]]
)
@torch.inference_mode()
def test_modules_that_compressed_tensors_ignore_stay_as_they_were(
    ignore: list[str], tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path, "compressed-tensors, rows", without=(MLP,), ignore=ignore)
    run = checkpoint.load()
    layer, other = run.model.layers
    assert layer.down_proj.packed.weight_scale is None
    assert other.down_proj.packed.weight.dtype is E4M3
    with_fp8_linears(checkpoint.reference, checkpoint.values)
    expected = checkpoint.reference(torch.tensor([[1, 2, 3]])).logits[0]
    assert_close_but_for_flips(run.step({"a": [1, 2, 3]})["a"], expected)
    unquantized = checkpoint.reference.get_submodule(MLP).weight
    held = sum(value.numel() for value in checkpoint.values.values())
    rows = sum(len(value) for value in checkpoint.values.values())
    total = sum(p.numel() for p in checkpoint.reference.parameters())
    assert unquantized.numel() == 64 * 96
    assert weight_bytes(checkpoint.source, run.model.config, torch.bfloat16) == (
        held + 4 * rows + 2 * (total - held)
    )


@pytest.mark.parametrize("name", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize("module", [MLP, "model.layers.0.mlp", "layers.0.mlp.down_proj"])
def test_what_fp8_does_not_convert_is_a_name_its_beginning_or_its_end(
    name: str, module: str, tmp_path: Path
) -> None:
    mlp = tuple(f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down"))
    without = (MLP,) if module.endswith("down_proj") else mlp
    settings = {name: ["lm_head", module]}
    checkpoint = Checkpoint(tmp_path, "fp8, tensors", without=without, **settings)
    first, second = checkpoint.load().model.layers
    assert first.down_proj.packed.weight_scale is None
    assert (first.gate_up_proj.packed.weight_scale is None) == (without is mlp)
    assert second.down_proj.packed.weight.dtype is E4M3


def test_part_of_a_word_is_no_name(tmp_path: Path) -> None:
    settings = {"modules_to_not_convert": ["model.layers.0.mlp.down"]}
    packed = Checkpoint(tmp_path, "fp8, tensors", **settings).load().model.layers[0].down_proj
    assert packed.packed.weight.dtype is E4M3


def test_scales_may_lie_in_another_file_than_their_weights(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "fp8, blocks")
    whole = checkpoint.load().step({"a": [1, 2, 3]})["a"]
    shards: dict[str, Stored] = {"a.safetensors": {}, "b.safetensors": {}}
    for name, tensor in checkpoint.tensors.items():
        shards["b.safetensors" if "scale" in name else "a.safetensors"][name] = tensor
    index = {name: file for file, tensors in shards.items() for name in tensors}
    for file, tensors in shards.items():
        save_file(tensors, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(checkpoint.load().step({"a": [1, 2, 3]})["a"], whole)


def _without_scale(tensors: Stored) -> None:
    del tensors[f"{MLP}.weight_scale"]


def _with(name: str, tensor: Tensor) -> Callable[[Stored], None]:
    def change(tensors: Stored) -> None:
        tensors[name] = tensor

    return change


SCALE = f"{MLP}.weight_scale"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without_scale, f"its weights lack {SCALE}"),
        (_with(SCALE, torch.tensor(torch.nan)), f"'{SCALE}' is damaged"),
        (_with(SCALE, torch.tensor([torch.inf])), f"'{SCALE}' is damaged"),
        (_with(SCALE, torch.tensor(-0.5)), f"'{SCALE}' is damaged"),
        (_with(SCALE, torch.tensor(1)), f"'{SCALE}' is of the type int64"),
        (_with(SCALE, torch.ones(3)), f"'{SCALE}' has the shape [3]"),
        (_with(SCALE, torch.ones(1000, 1000)), f"'{SCALE}' has the shape [1000, 1000]"),
        (_with(f"{SCALE}_inv", torch.tensor(1.0)), "unexpected tensor"),
        (_with("lm_head.weight_scale", torch.tensor(1.0)), "unexpected tensor 'lm_head.weight_s"),
        (_with("model.norm.weight_scale", torch.tensor(1.0)), "unexpected tensor 'model.norm"),
        (_with(f"{MLP}.weight", torch.ones(64, 96)), "is of the type float32: .* float8_e4m3fn"),
        (
            _with(f"{MLP}.weight", torch.ones(64, 96).to(torch.float8_e5m2)),
            "is of the type float8_e5m2: its configuration asks for float8_e4m3fn",
        ),
        (
            _with("lm_head.weight", torch.ones(320, 64).to(E4M3)),
            "'lm_head.weight' is of the type float8_e4m3fn: its configuration asks for float32 or",
        ),
    ],
)
def test_damaged_checkpoints_are_refused_with_one_sentence(
    change: Callable[[Stored], None], says: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path, "fp8, tensors")
    change(checkpoint.tensors)
    text = checkpoint.refusal()
    assert all(part in text for part in says.split(" .* ")), text


def test_blocks_of_another_number_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "fp8, blocks")
    name = f"{MLP}.weight_scale_inv"
    assert checkpoint.tensors[name].shape == (2, 2)
    checkpoint.tensors[name] = torch.ones(2, 3)
    assert f"'{name}' has the shape [2, 3]" in checkpoint.refusal()


def test_a_weight_without_a_quantization_config_is_not_taken_for_numbers(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "fp8, tensors")
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    del raw["quantization_config"]
    path.write_text(json.dumps(raw))
    save_file(
        {n: t for n, t in checkpoint.tensors.items() if "scale" not in n},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelLoadError, match="is of the type float8_e4m3fn: its configuration"):
        checkpoint.load()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "gptq"}, "quantized by 'gptq' are not supported"),
        ("fp8", "quantized by None are not supported"),
        (hf_fp8(weight_block_size=[128]), "Expected `array` of length 2"),
        (hf_fp8(weight_block_size=[0, 128]), "Expected `int` >= 1"),
        (hf_fp8(scale_fmt="ue8m0"), "'ue8m0' scales"),
        (hf_fp8(modules_to_not_convert="lm_head"), "Expected `array | null`"),
        (compressed_tensors("channel", format="pack-quantized"), "the format 'pack-quantized'"),
        (compressed_tensors("group"), "with a scale a group"),
        (compressed_tensors("block"), "with a scale a block and the blocks None"),
        (compressed_tensors("channel", config_groups={}), "with 0 groups"),
        (compressed_tensors("channel", config_groups=3), "Expected `object`"),
        (compressed_tensors("channel", ignore=["re:("]), "is no regular expression"),
        (compressed_tensors("channel", ignore=["re:(.*a)*b"]), "repeats too much"),
        (compressed_tensors("channel", ignore=["re:" + ".*a" * 5]), "repeats too much"),
        (compressed_tensors("channel", ignore=[Q]), f"ignores some of {Q}, {K}"),
    ],
)
def test_other_quantizations_are_refused_by_name(config: Any, says: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "fp8, tensors")
    checkpoint.config = config
    assert says in checkpoint.refusal()


def test_weights_alone_in_e4m3_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "compressed-tensors, rows")
    checkpoint.config["config_groups"]["group_0"]["input_activations"] = None
    assert "weights and input activations are not both 8-bit" in checkpoint.refusal()


def test_the_general_route_has_no_fp8_checkpoints(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, "olmo2")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": hf_fp8()}))
    with pytest.raises(ModelLoadError, match="Olmo2ForCausalLM with fp8 weights is not supported"):
        load_config(source_at(tmp_path))

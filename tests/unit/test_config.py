"""EngineConfig: what model.json may say, and the sentence for what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inferx.config import EngineConfig
from inferx.errors import ConfigError


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        EngineConfig.from_mapping({"model": "x", **settings})
    return str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in EngineConfig.__annotations__.items()
        if kind == "Count" or "int" in kind
    ]
    + ["max_model_len", "max_num_batched_tokens", "block_size"],
)
@pytest.mark.parametrize("value", [2**70, -(2**70)])
def test_a_number_that_the_engine_cannot_be_told_is_refused_by_name(name: str, value: int) -> None:
    assert name in refusal(**{name: value})


@pytest.mark.parametrize("name", ["gpu_memory_utilization", "drain_timeout", "heartbeat_timeout"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, "1"])
def test_a_fraction_or_time_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    assert name in refusal(**{name: value})


def test_settings_survive_the_wire() -> None:
    config = EngineConfig.from_mapping({"model": "x", "seed": -(2**62), "max_model_len": 2**31})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


def test_an_unknown_setting_is_refused_with_the_nearest_known_one() -> None:
    assert refusal(max_num_seq=3) == (
        "model.json: unknown setting 'max_num_seq'; did you mean 'max_num_seqs'?"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not readable JSON"),
        ("[" * 100_000, "not readable JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "the setting 'model' is missing"),
        ('{"model": "x", "block_size": 24}', "block_size is 24: expected a multiple of 16"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        EngineConfig.from_file(file)
    assert str(raised.value).startswith("model.json")
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("name", EngineConfig.__struct_fields__)
def test_text_that_is_no_unicode_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps({"model": "x", name: "caf\udce9"}))
    with pytest.raises(ConfigError) as raised:
        EngineConfig.from_file(tmp_path / "model.json")
    assert str(raised.value) == (
        f"model.json: setting {name!r} is 'caf\\udce9': expected valid Unicode"
    )


def test_a_file_that_cannot_be_read_is_named_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.json").mkdir()
    with pytest.raises(ConfigError) as raised:
        EngineConfig.from_file(tmp_path / "model.json")
    assert str(raised.value) == "model.json cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("given", "found"),
    [("off", "off"), ("auto", "auto"), (0.25, 0.25), ("0.25", 0.25), (0, 0.0), (" 0.4 ", 0.4)],
)
def test_sparsity_is_a_word_or_a_ratio_as_a_number_or_as_text(given: Any, found: Any) -> None:
    config = EngineConfig.from_mapping({"model": "x", "sparsity": given})
    assert config.sparsity == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize("value", [1, -0.1, "1.5", "nan", "most", True, None, []])
def test_what_is_no_sparsity_is_refused_by_name(value: object) -> None:
    assert "sparsity" in refusal(sparsity=value)
    assert refusal(sparsity="most") == (
        "model.json: sparsity is 'most': expected 'off', 'auto' or a ratio in [0, 1)"
    )


def test_settings_that_exclude_sparsity_are_named() -> None:
    assert refusal(sparsity=0.25, batch_invariant=True).startswith(
        "model.json: sparsity is 0.25 with batch_invariant, and a step is only as sparse as all "
    )
    assert refusal(sparsity="auto", batch_invariant=True) == (
        "model.json: sparsity is 'auto' with batch_invariant, and auto chooses a path by who "
        "shares the batch: set sparsity to 0, then requests may still name a ratio"
    )
    assert refusal(sparsity=0.25, engine="synthetic") == (
        "model.json: sparsity is set, and the synthetic engine has no activations: leave it out"
    )

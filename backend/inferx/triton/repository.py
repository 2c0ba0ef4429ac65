"""A model repository as Triton reads it, made of settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferx.errors import ConfigError


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

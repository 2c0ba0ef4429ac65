"""What a tokenizer is made of, as a Hugging Face folder lays it out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from inferx.source import ModelSource, load_error

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_TEMPLATE_JSON = "chat_template.json"  # written by older processors
_MORE_TEMPLATES = "additional_chat_templates"
_DEFAULT_TEMPLATE = "default"
_MAX_BYTES = 256 << 20  # of one file; the largest published tokenizer.json have some 30 MiB


class TokenizerFiles(NamedTuple):
    """`tokenizer_json` is the file's text, `config` what tokenizer_config.json says, and
    `chat_templates` the Jinja sources by name ("default", "tool_use", ...)."""

    tokenizer_json: str
    config: dict[str, Any]
    chat_templates: dict[str, str]

    def write(self, folder: Path) -> None:
        """Writes a folder that `read_folder` and transformers' AutoTokenizer read."""
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.config}
        if _DEFAULT_TEMPLATE in self.chat_templates:
            config["chat_template"] = self.chat_templates[_DEFAULT_TEMPLATE]
        (folder / TOKENIZER).write_text(self.tokenizer_json, encoding="utf-8")
        (folder / CONFIG).write_text(
            json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )


def read_folder(source: ModelSource) -> TokenizerFiles:
    """Reads a Hugging Face folder. Raises ModelLoadError."""
    folder = source.path
    tokenizer_json = _read(source, folder / TOKENIZER)
    if tokenizer_json is None:
        raise load_error(
            source,
            f"its folder has no {TOKENIZER}: make one with transformers, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    config = {
        **_read_object(source, folder / _SPECIAL_TOKENS_MAP),
        **_read_object(source, folder / CONFIG),
    }
    return TokenizerFiles(tokenizer_json, config, _chat_templates(source, config))


def _chat_templates(source: ModelSource, config: dict[str, Any]) -> dict[str, str]:
    """Templates of their own files win over those in tokenizer_config.json, as in transformers."""
    templates = _named_templates(config.get("chat_template"))
    templates.update(
        _named_templates(_read_object(source, source.path / _TEMPLATE_JSON).get("chat_template"))
    )
    default = _read(source, source.path / _TEMPLATE)
    if default is not None:
        templates[_DEFAULT_TEMPLATE] = default
    for file in sorted((source.path / _MORE_TEMPLATES).glob("*.jinja")):
        templates[file.stem] = _read(source, file) or ""
    return templates


def _named_templates(given: Any) -> dict[str, str]:
    """A template, or a list of {"name": ..., "template": ...}."""
    if isinstance(given, str):
        return {_DEFAULT_TEMPLATE: given}
    if not isinstance(given, list):
        return {}
    return {
        entry["name"]: entry["template"]
        for entry in given
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


def _read_object(source: ModelSource, path: Path) -> dict[str, Any]:
    text = _read(source, path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise load_error(source, f"{path.name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise load_error(source, f"{path.name} holds no JSON object")
    return value


def _read(source: ModelSource, path: Path) -> str | None:
    """The file's text; None where there is no such file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise load_error(source, f"{path.name} is larger than {_MAX_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise load_error(source, f"{path.name} is not UTF-8") from None
    except OSError as error:
        raise load_error(source, f"{path.name} cannot be read: {error.strerror}") from None

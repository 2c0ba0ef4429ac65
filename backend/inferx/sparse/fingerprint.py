"""Tells a model from others of its shape, without reading all of its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from inferx.source import ModelSource

_SAMPLES = 64  # a file
_SAMPLE_BYTES = 64 * 1024


def model_fingerprint(source: ModelSource) -> str:
    """A hash of its weight files' sizes, beginnings, ends, and evenly spaced parts between.

    A fine-tuned model, another quantization and a converted file all have their own.
    """
    found = hashlib.sha256()
    for file in _weight_files(source.path):
        size = file.stat().st_size
        found.update(f"{size};".encode())
        last = max(0, size - _SAMPLE_BYTES)
        with file.open("rb") as weights:
            for sample in range(_SAMPLES):
                weights.seek(last * sample // (_SAMPLES - 1))
                found.update(weights.read(_SAMPLE_BYTES))
    return found.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))

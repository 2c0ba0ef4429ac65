"""Tokenizers rebuilt from GGUF files, kept as tokenizer.json in the user's cache folder.

The cache is a convenience: whatever goes wrong with it, the tokenizer is rebuilt. It holds one
entry a GGUF file; a file that changes gets a new entry in place of its old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from inferx.errors import ModelLoadError
from inferx.source import ModelSource
from inferx.text.gguf_tokenizer import read_gguf_tokenizer
from inferx.text.tokenizer_files import CONFIG, TOKENIZER, TokenizerFiles, read_folder

_FORMAT = "1"  # of the rebuilt tokenizer; entries of another one are not used
_DIGEST = "sha256"  # the file that an entry which was cut or altered does not match
_SAMPLE_BYTES = 64 << 10
_NUM_SAMPLES = 16


def cached_gguf_tokenizer(source: ModelSource) -> TokenizerFiles:
    """`read_gguf_tokenizer`, through the cache. Raises ModelLoadError."""
    try:
        entry = _cache_folder() / _entry_name(source.path)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return read_gguf_tokenizer(source)
    if entry.is_dir():
        with contextlib.suppress(OSError, ModelLoadError):
            if (entry / _DIGEST).read_bytes() == _digest(entry):
                return read_folder(source._replace(path=entry))
        shutil.rmtree(entry, ignore_errors=True)
    files = read_gguf_tokenizer(source)
    with contextlib.suppress(OSError):
        _store(files, entry)
    return files


def _cache_folder() -> Path:
    """The folder, made where it is missing. Raises OSError where it is not this user's alone."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / "inferx" / "tokenizers"
    for owned in (folder.parent, folder):
        owned.mkdir(mode=0o700, exist_ok=True)
        status = owned.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{owned} can be written by other users")
    return folder


def _entry_name(path: Path) -> str:
    """`HASH OF THE PATH-HASH OF THE IDENTITY`: size, time of change and samples of the content."""
    where = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        identity = hashlib.sha256(f"{_FORMAT} {status.st_size} {status.st_mtime_ns}".encode())
        step = max(1, (status.st_size - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
        for offset in range(0, step * _NUM_SAMPLES, step):
            file.seek(offset)
            identity.update(file.read(_SAMPLE_BYTES))
    return f"{where}-{identity.hexdigest()[:32]}"


def _digest(entry: Path) -> bytes:
    """Of what `TokenizerFiles.write` writes. Raises OSError where a file is missing."""
    digest = hashlib.sha256()
    for name in (TOKENIZER, CONFIG):
        digest.update(hashlib.sha256((entry / name).read_bytes()).digest())
    return digest.hexdigest().encode()


def _store(files: TokenizerFiles, entry: Path) -> None:
    """Writes beside the entry and renames, so that a reader sees all of it or nothing."""
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=entry.parent))  # mode 0700
    try:
        files.write(unfinished)
        (unfinished / _DIGEST).write_bytes(_digest(unfinished))
        for path in unfinished.iterdir():
            path.chmod(0o600)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        unfinished.rename(entry)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    for other in entry.parent.glob(entry.name.partition("-")[0] + "-*"):
        if other != entry:
            shutil.rmtree(other, ignore_errors=True)

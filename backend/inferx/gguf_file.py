"""The header of a GGUF file: metadata and where each tensor lies, every size checked first.

The `gguf` library's reader makes a numpy array of every number and string in the header (2.4 s
for a vocabulary of 49,152) and trusts the sizes in the file; this one takes 0.1 s and trusts
nothing. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. No torch here.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4
_MAX_ENTRIES = 1 << 20  # metadata entries, tensors; real files have some hundreds
_MAX_NAME = 1 << 16  # bytes
_MAX_HEADER = 64 << 20  # bytes; those of the largest vocabularies have some 20 MiB
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


class GGUFError(ValueError):
    """The file is no GGUF, is damaged, or is of a kind that is not read; one clause that says."""


class TensorInfo(NamedTuple):
    """`shape` is torch's: the GGUF's dimensions, outermost first. `offset` counts in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


class GGUFFile(NamedTuple):
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """An entry of the architecture: `block_count` is `llama.block_count` in a Llama's file."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def read_gguf(path: Path) -> GGUFFile:
    """Parses the header. Raises GGUFError, also where a tensor ends beyond the file; OSError."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GGUFError("the file is empty") from None
        with data:
            try:
                return _Header(data).read(path)
            except struct.error:
                raise GGUFError("the file is truncated in its header") from None
            except UnicodeDecodeError:
                raise GGUFError("its header holds a string that is not UTF-8") from None


class _Header:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0

    def read(self, path: Path) -> GGUFFile:
        if self.data[:4] != b"GGUF":
            raise GGUFError("the file does not begin like a GGUF file")
        self.at = 4
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise GGUFError(f"its GGUF version is {version}: versions 2 and 3 are read")
        num_tensors, num_entries = self.scalar("Q"), self.scalar("Q")
        if max(num_tensors, num_entries) > _MAX_ENTRIES:
            raise GGUFError("its header is damaged: it counts millions of entries")
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self.name()
            if key in metadata:
                raise GGUFError(f"its header has the entry {key!r} twice")
            metadata[key] = self.value(self.scalar("I"))
        infos = [self.tensor_info() for _ in range(num_tensors)]
        return GGUFFile(path, metadata, self.place(infos, metadata))

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def expect(self, num_bytes: int) -> None:
        """What follows has at least so many. As Python's objects it takes some ten times as many:
        what no header needs is refused before they are made."""
        if num_bytes > self.size - self.at:
            raise GGUFError("the file is truncated in its header")
        if self.at + num_bytes > _MAX_HEADER:
            raise GGUFError(f"its header takes more than {_MAX_HEADER >> 20} MiB")

    def text(self) -> str:
        length = self.scalar("Q")
        self.expect(length)
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def name(self) -> str:
        name = self.text()
        if len(name) > _MAX_NAME:
            raise GGUFError("its header is damaged: a name is longer than 65,536 characters")
        return name

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise GGUFError(f"its header is damaged: there is no value type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if kind == _ARRAY:
            raise GGUFError("its header holds an array of arrays, which is not read")
        if kind == _STRING:
            self.expect(8 * length)
            text: Callable[[], str] = self.text
            return [text() for _ in range(length)]
        if kind not in _SCALARS:
            raise GGUFError(f"its header is damaged: there is no value type {kind}")
        code = _SCALARS[kind]
        self.expect(length * struct.calcsize("<" + code))
        values = struct.unpack_from(f"<{length}{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{length}{code}")
        return list(values)

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.name()
        num_dims = self.scalar("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise GGUFError(f"tensor {name!r} has {num_dims} dimensions: expected 1 to {_MAX_DIMS}")
        dims = struct.unpack_from(f"<{num_dims}Q", self.data, self.at)
        self.at += 8 * num_dims
        return name, tuple(reversed(dims)), self.scalar("I"), self.scalar("Q")

    def place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
    ) -> dict[str, TensorInfo]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise GGUFError("its entry general.alignment is damaged")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise GGUFError(f"its header has the tensor {name!r} twice")
            info = _tensor(name, shape, kind, start + offset)
            if info.offset + info.num_bytes > self.size:
                raise GGUFError(f"the file is truncated: tensor {name!r} ends beyond it")
            tensors[name] = info
        return tensors


def _tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
    try:
        ggml_type = GGMLQuantizationType(kind)
        block_size, type_size = GGML_QUANT_SIZES[ggml_type]
    except (ValueError, KeyError):
        raise GGUFError(f"tensor {name!r} has the unknown type {kind}") from None
    if shape[-1] % block_size:
        raise GGUFError(
            f"tensor {name!r} has rows of {shape[-1]}, not a multiple of "
            f"{ggml_type.name}'s block of {block_size}"
        )
    num_elements = math.prod(shape)
    if num_elements == 0:
        raise GGUFError(f"tensor {name!r} has no elements")
    return TensorInfo(name, shape, ggml_type, offset, num_elements // block_size * type_size)
